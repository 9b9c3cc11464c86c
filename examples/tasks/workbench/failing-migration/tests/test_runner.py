"""The runner applies a migration whole or not at all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from shopdb.migrate import MigrationEdited, MigrationFailed, migrate
from test_data import production

FIRST = "CREATE TABLE parent (id INTEGER PRIMARY KEY); INSERT INTO parent VALUES (1), (2);"
SECOND = """
CREATE TABLE child (id INTEGER PRIMARY KEY, parent_id INTEGER REFERENCES parent (id) ON DELETE CASCADE);
INSERT INTO child VALUES (10, 1), (20, 2);
CREATE TRIGGER no_third AFTER INSERT ON parent WHEN NEW.id = 3
BEGIN
    SELECT RAISE(ABORT, 'not this; one');
END;
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "migrations"
    path.mkdir()
    (path / "0001_first.sql").write_text(FIRST)
    (path / "0002_second.sql").write_text(SECOND)
    return path


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def test_a_failing_migration_leaves_no_trace(folder: Path, tmp_path: Path) -> None:
    """Tables, rows and deletions made before the failing statement are undone."""
    path = tmp_path / "shop.db"
    migrate(path, folder)
    before = dump(path)
    statements = ["SELECT nonsense FROM nowhere;", "SYNTAX ERROR", "INSERT INTO parent VALUES (1);"]
    for bad in [*statements, "INSERT INTO parent VALUES (3);"]:
        (folder / "0003_third.sql").write_text(f"CREATE TABLE third (x); DELETE FROM child; DROP TABLE child;\n{bad}")
        with pytest.raises(MigrationFailed, match=r"0003_third\.sql"):
            migrate(path, folder)
        assert dump(path) == before


def test_those_before_it_stay_applied(folder: Path, tmp_path: Path) -> None:
    """The run stops at the failing file; mended, it goes on from there."""
    path = tmp_path / "shop.db"
    (folder / "0003_third.sql").write_text("CREATE TABLE third (x); INSERT INTO parent VALUES (2);")
    (folder / "0004_fourth.sql").write_text("CREATE TABLE fourth (x);")
    with pytest.raises(MigrationFailed):
        migrate(path, folder)
    (folder / "0003_third.sql").write_text("CREATE TABLE third (x); INSERT INTO parent VALUES (4);")
    assert migrate(path, folder) == ["0003_third.sql", "0004_fourth.sql"]
    assert migrate(path, folder) == []


def test_a_dangling_foreign_key_is_a_failure(folder: Path, tmp_path: Path) -> None:
    """A migration that takes the parent away from a child does not go through."""
    path = tmp_path / "shop.db"
    (folder / "0002_second.sql").write_text(SECOND.replace(" ON DELETE CASCADE", ""))
    migrate(path, folder)
    before = dump(path)
    for bad in ("DELETE FROM parent WHERE id = 2;", "INSERT INTO child VALUES (30, 77);"):
        (folder / "0003_third.sql").write_text(bad)
        with pytest.raises(MigrationFailed, match=r"0003_third\.sql"):
            migrate(path, folder)
        assert dump(path) == before


def test_a_rebuilt_table_does_not_take_its_children_along(folder: Path, tmp_path: Path) -> None:
    """Dropping and renaming the parent, as SQLite requires for changing a table, keeps the rows that refer to it."""
    path = tmp_path / "shop.db"
    (folder / "0003_rebuild.sql").write_text(
        "CREATE TABLE parent_new (id INTEGER PRIMARY KEY, name TEXT);"
        "INSERT INTO parent_new (id) SELECT id FROM parent;"
        "DROP TABLE parent; ALTER TABLE parent_new RENAME TO parent;"
    )
    migrate(path, folder)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM child ORDER BY id").fetchall() == [(10, 1), (20, 2)]


def test_triggers_with_several_statements_work(folder: Path, tmp_path: Path) -> None:
    """A semicolon does not always end a statement."""
    migrate(tmp_path / "shop.db", folder)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        with pytest.raises(sqlite3.IntegrityError, match="not this; one"):
            db.execute("INSERT INTO parent VALUES (3)")


def test_an_edited_migration_is_refused(folder: Path, tmp_path: Path) -> None:
    """A change to an applied file is an error, and nothing new is applied."""
    path = tmp_path / "shop.db"
    migrate(path, folder)
    before = dump(path)
    (folder / "0001_first.sql").write_text(FIRST + " -- just a comment")
    (folder / "0003_third.sql").write_text("CREATE TABLE third (x);")
    with pytest.raises(MigrationEdited):
        migrate(path, folder)
    assert dump(path) == before


def test_what_production_has_applied_is_unchanged(tmp_path: Path) -> None:
    """0001 and 0002 are still the files that production knows."""
    assert len(migrate(production(tmp_path / "shop.db"))) >= 2
