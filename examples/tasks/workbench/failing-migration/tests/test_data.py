"""0003 brings production's data over: nothing lost, duplicates merged."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shopdb.migrate import migrate

APPLIED = sorted((Path(__file__).parent / "applied").glob("*.sql"))
LEFT_BEHIND = """
CREATE TABLE customers_new (
    id INTEGER PRIMARY KEY,
    given_name TEXT NOT NULL,
    family_name TEXT NOT NULL,
    email TEXT UNIQUE,
    created_at TEXT NOT NULL
);
"""
CUSTOMERS = [
    (1, "Ada Byron", "ada@example.com", "2021-02-03"),
    (2, "  Grace   Murray Hopper ", "Grace@Example.com", "2021-05-09"),
    (3, None, "info@example.org", "2021-06-01"),
    (4, "Plato", " plato@example.gr", "2021-07-12"),
    (5, "Ada King", "ADA@example.com ", "2020-01-01"),
    (6, "Radia Perlman", None, "2022-01-30"),
    (7, "Walk-in customer", None, "2022-02-01"),
    (8, "  ", "grace@example.com", "2022-03-03"),
    (9, "No Mail", "  ", "2022-03-04"),
    (20, None, "late@example.com", "2023-01-05"),
    (21, " ", "LATE@example.com", "2023-01-04"),
    (22, "O'Brien de la Cruz", "Late@Example.Com", "2023-01-06"),
    (23, "Somebody Else", "late@example.com", "2023-01-03"),
]
MIGRATED = [
    (1, "Ada", "Byron", "ada@example.com", "2020-01-01"),
    (2, "Grace", "Murray Hopper", "grace@example.com", "2021-05-09"),
    (3, "", "", "info@example.org", "2021-06-01"),
    (4, "Plato", "", "plato@example.gr", "2021-07-12"),
    (6, "Radia", "Perlman", None, "2022-01-30"),
    (7, "Walk-in", "customer", None, "2022-02-01"),
    (9, "No", "Mail", None, "2022-03-04"),
    (20, "O'Brien", "de la Cruz", "late@example.com", "2023-01-03"),
]
SURVIVOR = {5: 1, 8: 2, 21: 20, 22: 20, 23: 20}
ORDERS = [(100 + n, row[0], 10 * n, f"2024-01-{n % 28 + 1:02}") for n, row in enumerate(CUSTOMERS * 5)]
NOTES = [(500 + n, row[0], f"note; {n}") for n, row in enumerate(CUSTOMERS)]


def production(path: Path, *, left_behind: bool = True) -> Path:
    """A database with 0001 and 0002 applied, real-life data, and perhaps what the failed attempt left."""
    with closing(sqlite3.connect(path)) as db:
        for file in APPLIED:
            db.executescript(file.read_text())
        db.execute("CREATE TABLE schema_migrations (name TEXT PRIMARY KEY, sha256 TEXT NOT NULL)")
        digests = [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in APPLIED]
        db.executemany("INSERT INTO schema_migrations VALUES (?, ?)", digests)
        if left_behind:
            db.executescript(LEFT_BEHIND)
        db.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", CUSTOMERS)
        db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", ORDERS)
        db.executemany("INSERT INTO notes VALUES (?, ?, ?)", NOTES)
        db.commit()
    return path


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


@pytest.fixture(params=[True, False], ids=["after-the-failure", "before-it"])
def migrated(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = production(tmp_path / "shop.db", left_behind=request.param)
    assert len(migrate(path)) >= 2
    return path


def test_customers_are_split_and_merged(migrated: Path) -> None:
    """Names, addresses and dates follow the rules; one row for each address."""
    assert rows(migrated, "SELECT * FROM customers ORDER BY id") == MIGRATED


def test_no_order_is_lost(migrated: Path) -> None:
    """Every order is there, unchanged but for the customer it was merged into."""
    expected = [(key, SURVIVOR.get(customer, customer), *rest) for key, customer, *rest in ORDERS]
    assert rows(migrated, "SELECT id, customer_id, total_cents, placed_at FROM orders ORDER BY id") == expected


def test_no_note_is_lost(migrated: Path) -> None:
    """Every note is there, too."""
    expected = [(key, SURVIVOR.get(customer, customer), text) for key, customer, text in NOTES]
    assert rows(migrated, "SELECT id, customer_id, text FROM notes ORDER BY id") == expected


def test_foreign_keys_hold_and_cascade(migrated: Path) -> None:
    """Orders and notes refer to the new table: strangers are refused, deletions cascade and are logged."""
    assert rows(migrated, "PRAGMA foreign_key_check") == []
    with closing(sqlite3.connect(migrated)) as db:
        db.execute("PRAGMA foreign_keys = ON")
        with pytest.raises(sqlite3.IntegrityError):
            db.execute("INSERT INTO orders VALUES (9999, 77, 1, '2024-01-01')")
        db.execute("DELETE FROM customers WHERE id = 2")
        assert db.execute("SELECT count(*) FROM orders WHERE customer_id = 2").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM notes WHERE customer_id = 2").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM order_log").fetchone() == (10,)


def test_addresses_stay_unique(migrated: Path) -> None:
    """The new table refuses a second customer with an address, but not a second one without."""
    with closing(sqlite3.connect(migrated)) as db:
        with pytest.raises(sqlite3.IntegrityError):
            db.execute("INSERT INTO customers VALUES (98, 'A', 'B', 'ada@example.com', '2024-01-01')")
        db.execute("INSERT INTO customers VALUES (99, 'A', 'B', NULL, '2024-01-01')")


def test_the_schema_does_not_depend_on_the_way(migrated: Path, tmp_path: Path) -> None:
    """An old and a new database end with the same tables, columns and indexes, and nothing is left behind."""
    migrate(tmp_path / "new.db")
    names = "SELECT type, name, tbl_name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY type, name"
    assert rows(migrated, names) == rows(tmp_path / "new.db", names)
    indexes = {name for kind, name, _ in rows(migrated, names) if kind == "index"}
    assert indexes >= {"customers_created_at", "orders_customer"}
    tables = {name for kind, name, _ in rows(migrated, names) if kind == "table"}
    assert tables == {"customers", "notes", "order_log", "orders", "schema_migrations"}
    for table in tables:
        assert rows(migrated, f"PRAGMA table_info({table})") == rows(tmp_path / "new.db", f"PRAGMA table_info({table})")


def test_running_again_changes_nothing(migrated: Path) -> None:
    """The second run applies nothing and keeps every row."""
    tables = ("customers", "orders", "notes", "schema_migrations")
    before = [rows(migrated, f"SELECT * FROM {table}") for table in tables]
    assert migrate(migrated) == []
    assert [rows(migrated, f"SELECT * FROM {table}") for table in tables] == before
