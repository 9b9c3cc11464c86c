from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from shopdb.migrate import MIGRATIONS, MigrationEdited, migrate


def test_an_empty_database_gets_everything_once(tmp_path: Path) -> None:
    names = [file.name for file in sorted(MIGRATIONS.glob("*.sql"))]
    assert migrate(tmp_path / "shop.db") == names
    assert migrate(tmp_path / "shop.db") == []


def test_the_tables_are_there(tmp_path: Path) -> None:
    migrate(tmp_path / "shop.db")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"customers", "orders", "notes", "order_log", "schema_migrations"}


def test_an_edited_migration_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    folder.mkdir()
    (folder / "0001_a.sql").write_text("CREATE TABLE a (x);")
    migrate(tmp_path / "shop.db", folder)
    (folder / "0001_a.sql").write_text("CREATE TABLE a (y);")
    with pytest.raises(MigrationEdited):
        migrate(tmp_path / "shop.db", folder)
