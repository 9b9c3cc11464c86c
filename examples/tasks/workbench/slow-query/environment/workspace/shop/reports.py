"""The reports. Amounts are in cents."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CustomerTotal:
    """What a customer ordered and paid, cancelled orders left out. ``last_order`` is None without orders."""

    customer_id: int
    name: str
    orders: int
    ordered_cents: int
    paid_cents: int
    last_order: str | None


@dataclass(frozen=True)
class ProductSales:
    """How many units of a product were sold, less those returned."""

    product_id: int
    name: str
    units: int


@dataclass(frozen=True)
class OpenOrder:
    """An order that is not fully paid."""

    order_id: int
    customer_id: int
    due_cents: int


def customer_totals(db: sqlite3.Connection) -> list[CustomerTotal]:
    """All customers, by name."""
    totals = []
    for customer_id, name in db.execute("SELECT id, name FROM customers"):
        orders, ordered, paid, last = 0, 0, 0, None
        for order_id, placed_at, discount in db.execute(
            "SELECT id, placed_at, discount_percent FROM orders WHERE customer_id = ? AND status <> 'cancelled'",
            (customer_id,),
        ):
            orders += 1
            ordered += _amount(db, order_id, discount)
            paid += _paid(db, order_id)
            last = max(last or placed_at, placed_at)
        totals.append(CustomerTotal(customer_id, name, orders, ordered, paid, last))
    return sorted(totals, key=lambda total: (total.name.casefold(), total.customer_id))


def top_products(db: sqlite3.Connection, since: str, limit: int) -> list[ProductSales]:
    """The ``limit`` products sold most in orders placed at ``since`` or later, most first, then by name."""
    units: Counter[int] = Counter()
    for (order_id,) in db.execute("SELECT id FROM orders WHERE placed_at >= ? AND status <> 'cancelled'", (since,)):
        items = db.execute("SELECT product_id, quantity FROM items WHERE order_id = ?", (order_id,))
        for product_id, quantity in items:
            units[product_id] += quantity
    sales = []
    for product_id, count in units.items():
        row = db.execute("SELECT name FROM products WHERE id = ?", (product_id,)).fetchone()
        sales.append(ProductSales(product_id, row[0] if row else "(deleted)", count))
    return sorted(sales, key=lambda sale: (-sale.units, sale.name.casefold(), sale.product_id))[:limit]


def open_orders(db: sqlite3.Connection, customer_ids: Sequence[int]) -> list[OpenOrder]:
    """The orders of these customers that are not fully paid: by customer, in the given order, then by date."""
    found = []
    for customer_id in customer_ids:
        for order_id, discount in db.execute(
            "SELECT id, discount_percent FROM orders WHERE customer_id = ? AND status <> 'cancelled'"
            " ORDER BY placed_at, id",
            (customer_id,),
        ):
            due = _amount(db, order_id, discount) - _paid(db, order_id)
            if due > 0:
                found.append(OpenOrder(order_id, customer_id, due))
    return found


def _amount(db: sqlite3.Connection, order_id: int, discount_percent: int | None) -> int:
    """What the items of an order cost, less the discount, rounded down."""
    items = db.execute("SELECT quantity, price_cents FROM items WHERE order_id = ?", (order_id,))
    full = sum(quantity * price for quantity, price in items)
    return full * (100 - (discount_percent or 0)) // 100


def _paid(db: sqlite3.Connection, order_id: int) -> int:
    """What was paid for an order."""
    payments = db.execute("SELECT amount_cents FROM payments WHERE order_id = ?", (order_id,))
    return sum(amount for (amount,) in payments)
