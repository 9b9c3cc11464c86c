"""The second half of shop/reports.py; apply.py puts it there."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from shop.reports import CustomerTotal, OpenOrder, ProductSales

# --- reports ---


def customer_totals(db: sqlite3.Connection) -> list[CustomerTotal]:
    """All customers, by name."""
    full = dict(db.execute("SELECT order_id, sum(quantity * price_cents) FROM items GROUP BY order_id"))
    paid = dict(db.execute("SELECT order_id, sum(amount_cents) FROM payments GROUP BY order_id"))
    orders: dict[int, list[tuple[int, str, int | None]]] = {}
    for customer_id, *order in db.execute(
        "SELECT customer_id, id, placed_at, discount_percent FROM orders WHERE status <> 'cancelled'"
    ):
        orders.setdefault(customer_id, []).append((order[0], order[1], order[2]))
    totals = []
    for customer_id, name in db.execute("SELECT id, name FROM customers"):
        own = orders.get(customer_id, [])
        totals.append(
            CustomerTotal(
                customer_id=customer_id,
                name=name,
                orders=len(own),
                ordered_cents=sum(_discounted(full.get(order_id, 0), discount) for order_id, _, discount in own),
                paid_cents=sum(paid.get(order_id, 0) for order_id, _, _ in own),
                last_order=max((placed_at for _, placed_at, _ in own), default=None),
            )
        )
    return sorted(totals, key=lambda total: (total.name.casefold(), total.customer_id))


def top_products(db: sqlite3.Connection, since: str, limit: int) -> list[ProductSales]:
    """The ``limit`` products sold most in orders placed at ``since`` or later, most first, then by name."""
    query = """
        SELECT items.product_id, coalesce(products.name, '(deleted)'), sum(items.quantity)
        FROM orders
        JOIN items ON items.order_id = orders.id
        LEFT JOIN products ON products.id = items.product_id
        WHERE orders.placed_at >= ? AND orders.status <> 'cancelled'
        GROUP BY items.product_id
    """
    sales = [ProductSales(*row) for row in db.execute(query, (since,))]
    # Sorted here: SQLite folds the case of ASCII letters only.
    return sorted(sales, key=lambda sale: (-sale.units, sale.name.casefold(), sale.product_id))[:limit]


def open_orders(db: sqlite3.Connection, customer_ids: Sequence[int]) -> list[OpenOrder]:
    """The orders of these customers that are not fully paid: by customer, in the given order, then by date."""
    # One JSON parameter holds any number of ids. Sums are sub-queries: joining items and payments would multiply them.
    query = """
        SELECT
            customer_id,
            id,
            discount_percent,
            (SELECT coalesce(sum(quantity * price_cents), 0) FROM items WHERE order_id = orders.id),
            (SELECT coalesce(sum(amount_cents), 0) FROM payments WHERE order_id = orders.id)
        FROM orders
        WHERE customer_id IN (SELECT value FROM json_each(?)) AND status <> 'cancelled'
        ORDER BY placed_at, id
    """
    found: dict[int, list[OpenOrder]] = {}
    for customer_id, order_id, discount, full, paid in db.execute(query, (json.dumps(list(customer_ids)),)):
        due = _discounted(full, discount) - paid
        if due > 0:
            found.setdefault(customer_id, []).append(OpenOrder(order_id, customer_id, due))
    return [order for customer_id in customer_ids for order in found.get(customer_id, [])]


def _discounted(full_cents: int, discount_percent: int | None) -> int:
    """Rounded down, also below zero, which SQL's division is not."""
    return full_cents * (100 - (discount_percent or 0)) // 100
