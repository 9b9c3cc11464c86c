"""The reports say the same as before, with little work for the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

import slow_reports
from shop import reports
from shop.db import open_db

T = TypeVar("T")
OLD_SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, placed_at TEXT NOT NULL, status TEXT, discount_percent INTEGER
);
CREATE TABLE items (
    id INTEGER PRIMARY KEY, order_id INTEGER NOT NULL, product_id INTEGER NOT NULL, quantity INTEGER NOT NULL,
    price_cents INTEGER NOT NULL
);
CREATE TABLE payments (id INTEGER PRIMARY KEY, order_id INTEGER NOT NULL, amount_cents INTEGER NOT NULL);
"""
TABLES = ("customers", "products", "orders", "items", "payments")
NAMES = ["Zoë", "zoe", "Ångström", "ångström", "Straße", "STRASSE", "émile", "Emile", "Ada", "ada", "ÖLAF"]
STATUSES = ["paid", "paid", "sent", "open", "cancelled", "CANCELLED", "", None]


def fill(db: sqlite3.Connection, seed: int, customers: int, orders: int) -> None:
    """Random data with all the oddities: no orders, no items, returns, strangers, deleted products, ties."""
    random = Random(seed)
    named = [(number, random.choice(NAMES)) for number in range(1, customers + 1)]
    db.executemany("INSERT INTO customers VALUES (?, ?)", named)
    db.executemany("INSERT INTO products VALUES (?, ?)", [(n, random.choice(NAMES)) for n in range(1, 31)])
    days = [f"2025-{random.randrange(1, 13):02}-{random.randrange(1, 29):02}" for _ in range(40)]
    numbers = random.sample(range(1, orders * 3), orders)
    discounts = [None, 0, 7, 33, 100]
    placed = [
        (n, random.randrange(1, customers + 20), random.choice(days), random.choice(STATUSES), random.choice(discounts))
        for n in numbers
    ]
    db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", placed)
    quantities = [1, 1, 2, 3, 10, -1, -5]
    lines = [
        (random.choice(numbers), random.randrange(1, 36), random.choice(quantities), random.randrange(1, 999))
        for _ in range(orders * 3)
    ]
    db.executemany("INSERT INTO items (order_id, product_id, quantity, price_cents) VALUES (?, ?, ?, ?)", lines)
    paid = [(random.choice(numbers), random.randrange(-200, 2000)) for _ in range(orders * 2)]
    db.executemany("INSERT INTO payments (order_id, amount_cents) VALUES (?, ?)", paid)
    db.commit()


@pytest.fixture
def small() -> Iterator[sqlite3.Connection]:
    with closing(open_db(":memory:")) as db:
        fill(db, seed=1, customers=40, orders=150)
        yield db


@pytest.fixture
def large(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database that the last release made, opened with this one."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.executescript(OLD_SCHEMA)
        fill(db, seed=2, customers=1_000, orders=4_000)
    with closing(open_db(tmp_path / "shop.db")) as db:
        yield db


def statements(db: sqlite3.Connection, work: Callable[[], T]) -> list[str]:
    """What ``work`` asks of the database; it is stopped when it has asked far too much."""
    seen: list[str] = []
    db.set_trace_callback(seen.append)
    db.set_progress_handler(lambda: len(seen) > 20, 100)
    try:
        work()
    except sqlite3.OperationalError as error:
        assert "interrupted" in str(error), error
    finally:
        db.set_progress_handler(None, 100)
        db.set_trace_callback(None)
    return seen


def steps(db: sqlite3.Connection, work: Callable[[], T], at_most: int) -> int:
    """How many hundred steps of SQLite's machine ``work`` takes; it is stopped when there are too many."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return count > at_most

    db.set_progress_handler(step, 100)
    try:
        work()
    finally:
        db.set_progress_handler(None, 100)
    return count


def rows(db: sqlite3.Connection) -> int:
    return sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)


def test_customer_totals_are_the_same() -> None:
    """On many small databases, as the slow report has them."""
    for seed in range(30):
        with closing(open_db(":memory:")) as db:
            fill(db, seed, customers=15, orders=40)
            expected: list[Any] = slow_reports.customer_totals(db)
            assert [vars(total) for total in reports.customer_totals(db)] == [vars(total) for total in expected]


def test_top_products_are_the_same() -> None:
    """For various dates and limits."""
    for seed in range(30):
        with closing(open_db(":memory:")) as db:
            fill(db, seed, customers=15, orders=40)
            for since, limit in [("2025-01-01", 5), ("2025-06-15", 100), ("2026-01-01", 5), ("", 1), ("2025-03", 0)]:
                expected: list[Any] = slow_reports.top_products(db, since, limit)
                found = reports.top_products(db, since, limit)
                assert [vars(sale) for sale in found] == [vars(sale) for sale in expected]


def test_open_orders_are_the_same() -> None:
    """For no, some, unknown and repeated ids, in any order."""
    for seed in range(30):
        with closing(open_db(":memory:")) as db:
            fill(db, seed, customers=15, orders=40)
            for ids in ([], [3], [9, 2, 5], [999, 4], [7, 1, 7], list(range(30, 0, -1)), (1, 2)):
                expected: list[Any] = slow_reports.open_orders(db, ids)
                found = reports.open_orders(db, ids)
                assert [vars(order) for order in found] == [vars(order) for order in expected]


def test_an_empty_database_has_empty_reports() -> None:
    """No customers, no products, no orders."""
    with closing(open_db(":memory:")) as db:
        assert reports.customer_totals(db) == []
        assert reports.top_products(db, "", 10) == []
        assert reports.open_orders(db, [1, 2]) == []


def test_the_number_of_statements_is_fixed(small: sqlite3.Connection, large: sqlite3.Connection) -> None:
    """At most five, for few and for many."""
    for db, ids in ((small, range(40)), (large, range(1_000))):
        assert len(statements(db, lambda db=db: reports.customer_totals(db))) <= 5
        assert len(statements(db, lambda db=db: reports.top_products(db, "2025-01-01", 10))) <= 5
        assert len(statements(db, lambda db=db, ids=ids: reports.open_orders(db, list(ids)))) <= 5


def test_many_ids_are_no_problem(large: sqlite3.Connection) -> None:
    """More ids than a statement may have parameters, in at most five statements."""
    ids = list(range(100_000, 0, -1))
    large.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
    large.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000)
    found: list[Any] = []
    assert len(statements(large, lambda: found.extend(reports.open_orders(large, ids)))) <= 5
    assert [order.order_id for order in found if order.customer_id > 990] == [
        order.order_id for order in slow_reports.open_orders(large, list(range(1_100, 990, -1)))
    ]


def test_the_work_grows_with_the_data_only(large: sqlite3.Connection) -> None:
    """Each row costs a few steps: no table is read again and again."""
    hundreds = rows(large)  # a hundred steps a row, in units of a hundred
    assert steps(large, lambda: reports.customer_totals(large), hundreds) <= hundreds
    assert steps(large, lambda: reports.top_products(large, "2025-01-01", 10), hundreds) <= hundreds
    assert steps(large, lambda: reports.open_orders(large, list(range(1_000))), hundreds) <= hundreds


def test_few_customers_are_little_work(large: sqlite3.Connection) -> None:
    """Three customers of a thousand: not enough steps to look at every order."""
    assert steps(large, lambda: reports.open_orders(large, [7, 700, 42]), 60) <= 60


def test_the_reports_write_nothing(small: sqlite3.Connection) -> None:
    """Tables and rows are as they were, and no transaction is left open."""
    before = list(small.iterdump())
    reports.customer_totals(small)
    reports.top_products(small, "2025-01-01", 10)
    reports.open_orders(small, list(range(50)))
    assert not small.in_transaction
    assert list(small.iterdump()) == before


def test_the_tables_keep_their_columns(large: sqlite3.Connection) -> None:
    """Other programs write into them."""
    with closing(sqlite3.connect(":memory:")) as old:
        old.executescript(OLD_SCHEMA)
        for table in TABLES:
            query = f"PRAGMA table_info({table})"
            assert large.execute(query).fetchall() == old.execute(query).fetchall()


def test_a_database_can_be_opened_again(tmp_path: Path) -> None:
    """Opening is harmless, however often, and loses nothing."""
    for count in range(3):
        with closing(open_db(tmp_path / "shop.db")) as db:
            db.execute("INSERT INTO customers (name) VALUES ('Ada')")
            db.commit()
            assert len(reports.customer_totals(db)) == count + 1
