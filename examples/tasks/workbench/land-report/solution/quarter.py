"""The figures of one quarter, from the CSV files of a folder."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reporting.money import to_cents

Row = dict[str, str]


@dataclass(frozen=True)
class Quarter:
    """Three months, in UTC."""

    year: int
    number: int

    @classmethod
    def parse(cls, text: str) -> Quarter:
        """From ``2026-q3``. Raises ValueError."""
        year, _, number = text.lower().partition("-q")
        if not (len(year) == 4 and year.isdecimal() and number in {"1", "2", "3", "4"}):
            raise ValueError(f"{text!r} is not a quarter like 2026-q3")
        return cls(int(year), int(number))

    def __contains__(self, moment: datetime) -> bool:
        utc = moment.astimezone(UTC)
        return (utc.year, (utc.month - 1) // 3 + 1) == (self.year, self.number)

    def __str__(self) -> str:
        return f"{self.year}-Q{self.number}"


@dataclass
class Figures:
    """Of one shop, in cents of EUR."""

    orders: int = 0
    gross_cents: int = 0
    refunds_cents: int = 0

    def to_json(self) -> dict[str, int]:
        return vars(self) | {"net_cents": self.gross_cents - self.refunds_cents}


def build(data: Path, quarter: Quarter) -> dict[str, Any]:
    """The report. Raises ValueError or KeyError when the data are wrong."""
    orders = _orders(data)
    rates = {(row["month"], row["currency"]): row["eur"] for row in _rows(data / "rates.csv")}
    shops: dict[str, Figures] = {}
    for order in orders.values():
        placed_at = datetime.fromisoformat(order["placed_at"])
        if placed_at in quarter and order["status"] != "cancelled":
            figures = shops.setdefault(order["shop"], Figures())
            figures.orders += 1
            figures.gross_cents += _cents(order["amount"], order["currency"], placed_at, rates)
    for refund in _rows(data / "refunds.csv"):
        order = orders[refund["order"]]
        refunded_at = datetime.fromisoformat(refund["refunded_at"])
        if refunded_at in quarter:
            figures = shops.setdefault(order["shop"], Figures())
            figures.refunds_cents += _cents(refund["amount"], order["currency"], refunded_at, rates)
    rows = {shop: figures.to_json() for shop, figures in sorted(shops.items())}
    total = {key: sum(row[key] for row in rows.values()) for key in Figures().to_json()}
    return {"quarter": str(quarter), "currency": "EUR", "shops": rows, "total": total}


def _orders(data: Path) -> dict[str, Row]:
    """By number, each in its highest revision."""
    newest: dict[str, Row] = {}
    for path in sorted(data.glob("orders-*.csv")):
        for row in _rows(path):
            known = newest.get(row["order"])
            if known is None or int(row["revision"]) > int(known["revision"]):
                newest[row["order"]] = row
    return newest


def _rows(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _cents(amount: str, currency: str, moment: datetime, rates: dict[tuple[str, str], str]) -> int:
    month = moment.astimezone(UTC).strftime("%Y-%m")
    if (month, currency) not in rates:
        raise ValueError(f"no rate for {currency} in {month}")
    return to_cents(amount, rates[month, currency])
