from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from shop.db import open_db
from shop.reports import CustomerTotal, OpenOrder, ProductSales, customer_totals, open_orders, top_products


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    db = open_db(":memory:")
    db.executescript(
        """
        INSERT INTO customers VALUES (1, 'Grace'), (2, 'ada');
        INSERT INTO products VALUES (7, 'Paper'), (8, 'Pens');
        INSERT INTO orders VALUES (10, 1, '2026-01-05', 'paid', 10), (11, 1, '2026-02-01', 'cancelled', NULL);
        INSERT INTO items VALUES (100, 10, 7, 2, 500), (101, 10, 8, 1, 99), (102, 11, 7, 50, 500);
        INSERT INTO payments VALUES (1000, 10, 500), (1001, 10, 100);
        """
    )
    yield db
    db.close()


def test_customer_totals(db: sqlite3.Connection) -> None:
    assert customer_totals(db) == [
        CustomerTotal(2, "ada", 0, 0, 0, None),
        CustomerTotal(1, "Grace", 1, 989, 600, "2026-01-05"),
    ]


def test_top_products(db: sqlite3.Connection) -> None:
    assert top_products(db, "2026-01-01", 5) == [ProductSales(7, "Paper", 2), ProductSales(8, "Pens", 1)]


def test_open_orders(db: sqlite3.Connection) -> None:
    assert open_orders(db, [2, 1]) == [OpenOrder(10, 1, 389)]
