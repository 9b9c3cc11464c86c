"""Apply the migrations that a database does not have yet."""

from __future__ import annotations

import hashlib
import sqlite3
import sys
from pathlib import Path

MIGRATIONS = Path(__file__).parent / "migrations"


class MigrationFailed(Exception):
    """A migration could not be applied; the message names it."""


class MigrationEdited(Exception):
    """A file differs from what was applied under its name."""


def migrate(database: Path, folder: Path = MIGRATIONS) -> list[str]:
    """Apply what is new in ``folder``; return the names of the files applied now.

    Raises :class:`MigrationFailed` and :class:`MigrationEdited`.
    """
    db = sqlite3.connect(database)
    try:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("CREATE TABLE IF NOT EXISTS schema_migrations (name TEXT PRIMARY KEY, sha256 TEXT NOT NULL)")
        applied = dict(db.execute("SELECT name, sha256 FROM schema_migrations"))
        files = sorted(folder.glob("*.sql"))
        for file in files:
            if applied.get(file.name, _digest(file)) != _digest(file):
                raise MigrationEdited(file.name)
        new = [file for file in files if file.name not in applied]
        for file in new:
            _apply(db, file)
        return [file.name for file in new]
    finally:
        db.close()


def _apply(db: sqlite3.Connection, file: Path) -> None:
    try:
        db.executescript(file.read_text())
        db.execute("INSERT INTO schema_migrations (name, sha256) VALUES (?, ?)", (file.name, _digest(file)))
        db.commit()
    except sqlite3.Error as error:
        raise MigrationFailed(f"{file.name}: {error}") from error


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    for name in migrate(Path(sys.argv[1])):
        print(f"applied {name}")
