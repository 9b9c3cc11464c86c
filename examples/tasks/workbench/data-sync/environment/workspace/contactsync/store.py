"""The warehouse: a SQLite database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from contactsync.feed import Entry

SCHEMA = """
CREATE TABLE IF NOT EXISTS contacts (
    id TEXT PRIMARY KEY,
    email TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS state (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
"""


class Store:
    """The contacts at ``path`` and how far the feed has been read."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path)
        self._db.executescript(SCHEMA)

    def put(self, entry: Entry) -> None:
        """Store the contact as the entry has it."""
        with self._db:
            self._db.execute(
                "INSERT OR REPLACE INTO contacts (id, email, name, version) VALUES (?, ?, ?, ?)",
                (entry.id, entry.email, entry.name, entry.version),
            )

    def position(self) -> str:
        """The moment up to which the feed has been read; empty at the beginning."""
        row = self._db.execute("SELECT value FROM state WHERE key = 'position'").fetchone()
        return row[0] if row else ""

    def set_position(self, updated_at: str) -> None:
        """Remember how far the feed has been read."""
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO state (key, value) VALUES ('position', ?)", (updated_at,))

    def count(self) -> int:
        """How many contacts there are."""
        return int(self._db.execute("SELECT count(*) FROM contacts").fetchone()[0])

    def close(self) -> None:
        """Close the database."""
        self._db.close()
