"""The user table."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

SCHEMA = """
BEGIN IMMEDIATE; -- up to the end of opening: a half-made column would lock everybody out
CREATE TABLE IF NOT EXISTS users (
    id INTEGER PRIMARY KEY,
    email TEXT NOT NULL UNIQUE,
    password TEXT NOT NULL
);
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
    """The accounts in the database at ``path``; the table is made if it is missing.

    ``login`` is the address in the form that identifies an account. It is unique; of old accounts that differ only in
    case, the first has it and the others have NULL.
    """

    def __init__(self, path: Path | str) -> None:
        self._db = sqlite3.connect(path)
        with self._db:
            self._db.executescript(SCHEMA)
            if "login" not in {row[1] for row in self._db.execute("PRAGMA table_info(users)")}:
                self._add_login()

    def _add_login(self) -> None:
        self._db.execute("ALTER TABLE users ADD COLUMN login TEXT")
        first: dict[str, int] = {}
        for user_id, email in self._db.execute("SELECT id, email FROM users ORDER BY id"):
            first.setdefault(_login(email), user_id)
        self._db.executemany("UPDATE users SET login = ? WHERE id = ?", first.items())
        self._db.execute("CREATE UNIQUE INDEX users_login ON users (login)")

    def add(self, email: str, password: str) -> User:
        """Store a new account. Raises :class:`AddressTaken`."""
        email = email.strip()
        row = (email, password, _login(email))
        try:
            with self._db:
                cursor = self._db.execute("INSERT INTO users (email, password, login) VALUES (?, ?, ?)", row)
        except sqlite3.IntegrityError:
            raise AddressTaken(email) from None
        assert cursor.lastrowid is not None
        return User(cursor.lastrowid, email, password)

    def by_email(self, email: str) -> User | None:
        """The account with this address, in whatever case it is written."""
        row = self._db.execute("SELECT id, email, password FROM users WHERE login = ?", (_login(email),)).fetchone()
        return User(*row) if row else None

    def close(self) -> None:
        """Close the database."""
        self._db.close()


def _login(email: str) -> str:
    """Lower case, and no more: ``casefold`` would make one account of straße and strasse."""
    return email.strip().lower()
