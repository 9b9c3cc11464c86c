"""The user table."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

SCHEMA = """
CREATE TABLE IF NOT EXISTS users (
    id INTEGER PRIMARY KEY,
    email TEXT NOT NULL UNIQUE,
    password TEXT NOT NULL
)
"""


class AddressTaken(Exception):
    """There is an account with this address."""


@dataclass(frozen=True)
class User:
    """``email`` is the address as the user wrote it when registering: letters to the user go there."""

    id: int
    email: str
    password: str


class Users:
    """The accounts in the database at ``path``; the table is made if it is missing."""

    def __init__(self, path: Path | str) -> None:
        self._db = sqlite3.connect(path)
        with self._db:
            self._db.execute(SCHEMA)

    def add(self, email: str, password: str) -> User:
        """Store a new account. Raises :class:`AddressTaken`."""
        try:
            with self._db:
                cursor = self._db.execute("INSERT INTO users (email, password) VALUES (?, ?)", (email, password))
        except sqlite3.IntegrityError:
            raise AddressTaken(email) from None
        assert cursor.lastrowid is not None
        return User(cursor.lastrowid, email, password)

    def by_email(self, email: str) -> User | None:
        """The account with this address."""
        row = self._db.execute("SELECT id, email, password FROM users WHERE email = ?", (email,)).fetchone()
        return User(*row) if row else None

    def close(self) -> None:
        """Close the database."""
        self._db.close()
