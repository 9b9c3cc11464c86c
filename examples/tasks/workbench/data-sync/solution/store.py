"""The warehouse: a SQLite database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from contactsync.feed import Entry

SCHEMA = """
CREATE TABLE IF NOT EXISTS contacts (
    id TEXT PRIMARY KEY,
    email TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS deleted (
    id TEXT PRIMARY KEY,
    version INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS state (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
"""


class Store:
    """The contacts at ``path`` and how far the feed has been read.

    A database of the first program has no position that this one knows, so all of the feed is read once more; the
    highest version of each contact then puts right what is missing, outdated or left over.
    """

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path)
        self._db.executescript(SCHEMA)

    def put_page(self, entries: Iterable[Entry]) -> None:
        """Store the entries of one page and the position after it, all or nothing."""
        with self._db:
            for entry in entries:
                self._put(entry)
                self._set("updated_at", entry.updated_at)
                self._set("id", entry.id)

    def _put(self, entry: Entry) -> None:
        if entry.version <= self._version(entry.id):
            return
        self._db.execute("DELETE FROM contacts WHERE id = ?", (entry.id,))
        self._db.execute("DELETE FROM deleted WHERE id = ?", (entry.id,))
        if entry.deleted:
            self._db.execute("INSERT INTO deleted (id, version) VALUES (?, ?)", (entry.id, entry.version))
        else:
            row = (entry.id, entry.email, entry.name, entry.version)
            self._db.execute("INSERT INTO contacts (id, email, name, version) VALUES (?, ?, ?, ?)", row)

    def _version(self, contact_id: str) -> int:
        """The highest version seen of the contact, living or deleted; 0 if none was."""
        query = "SELECT version FROM contacts WHERE id = :id UNION ALL SELECT version FROM deleted WHERE id = :id"
        row = self._db.execute(query, {"id": contact_id}).fetchone()
        return int(row[0]) if row else 0

    def _set(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)", (key, value))

    def position(self) -> tuple[str, str | None]:
        """``updated_at`` and ``id`` of the last entry stored; an empty moment at the beginning."""
        state = dict(self._db.execute("SELECT key, value FROM state").fetchall())
        return state.get("updated_at", ""), state.get("id")

    def count(self) -> int:
        """How many contacts there are."""
        return int(self._db.execute("SELECT count(*) FROM contacts").fetchone()[0])

    def close(self) -> None:
        """Close the database."""
        self._db.close()
