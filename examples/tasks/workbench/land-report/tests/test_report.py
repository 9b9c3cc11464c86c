"""The report of the third quarter stands where finance looks for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REPORTS = Path("/reports")
SHOPS = {
    "austin": (66, 1864839, 23541, 1841298),
    "berlin": (65, 2074346, 92630, 1981716),
    "tokyo": (68, 2166589, 85079, 2081510),
    "warsaw": (66, 493805, 10705, 483100),
}


def report() -> dict[str, Any]:
    loaded = json.loads((REPORTS / "2026-q3.json").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def test_the_report_has_the_agreed_shape() -> None:
    """Four keys, the quarter and the currency as agreed."""
    found = report()
    assert set(found) == {"quarter", "currency", "shops", "total"}
    assert (found["quarter"], found["currency"]) == ("2026-Q3", "EUR")
    assert all(set(row) == {"orders", "gross_cents", "refunds_cents", "net_cents"} for row in found["shops"].values())


def test_the_orders_are_counted() -> None:
    """Each shop has the number of orders that the rules leave."""
    counts = {shop: row["orders"] for shop, row in report()["shops"].items()}
    assert counts == {shop: row[0] for shop, row in SHOPS.items()}


def test_the_amounts_are_right_to_the_cent() -> None:
    """Gross, refunds and net of each shop."""
    keys = ("orders", "gross_cents", "refunds_cents", "net_cents")
    assert {shop: tuple(row[key] for key in keys) for shop, row in report()["shops"].items()} == SHOPS


def test_the_total_adds_up() -> None:
    """The total is the sum of the right figures, in whole cents."""
    total = [sum(column) for column in zip(*SHOPS.values(), strict=True)]
    assert report()["total"] == dict(zip(("orders", "gross_cents", "refunds_cents", "net_cents"), total, strict=True))
    assert all(type(value) is int for value in report()["total"].values())


def test_nothing_else_is_in_the_folder() -> None:
    """Finance would take it for a report."""
    assert [path.name for path in REPORTS.iterdir()] == ["2026-q3.json"]
