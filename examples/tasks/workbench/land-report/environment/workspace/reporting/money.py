"""Amounts of money, without binary fractions."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal


def to_cents(amount: str, rate: str = "1") -> int:
    """``amount`` times ``rate`` in cents, rounded half up (away from zero)."""
    return int((Decimal(amount) * Decimal(rate) * 100).quantize(Decimal(1), rounding=ROUND_HALF_UP))
