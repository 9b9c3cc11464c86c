"""The warehouse that stands in the workspace matches the feed."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

WAREHOUSE = Path("/workspace/warehouse.db")
LIVE = 504
# Of the live contacts, worked out from the feed.
DIGEST = "a61b8f89bbe50bebf1c6a7a90eb43a5a0e05f16067c9a3cfd79efe69c0ce6c3d"


def contacts() -> list[tuple[str, str, str, int]]:
    with closing(sqlite3.connect(f"{WAREHOUSE.as_uri()}?mode=ro", uri=True)) as db:
        return sorted(db.execute("SELECT id, email, name, version FROM contacts"))


def test_the_count_matches() -> None:
    """As many contacts as the vendor's console shows."""
    assert len(contacts()) == LIVE


def test_every_contact_matches() -> None:
    """Each has the e-mail, name and version of its newest entry."""
    assert hashlib.sha256(json.dumps(contacts()).encode()).hexdigest() == DIGEST


def test_the_table_keeps_its_columns() -> None:
    """Other programs find the columns they know."""
    with closing(sqlite3.connect(f"{WAREHOUSE.as_uri()}?mode=ro", uri=True)) as db:
        assert [row[1] for row in db.execute("PRAGMA table_info(contacts)")] == ["id", "email", "name", "version"]
