"""Open the shop's database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

SCHEMA = Path(__file__).with_name("schema.sql")


def open_db(path: Path | str) -> sqlite3.Connection:
    """A connection to the database at ``path``, with all tables."""
    db = sqlite3.connect(path)
    db.executescript(SCHEMA.read_text())
    return db
