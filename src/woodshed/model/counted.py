"""Counted: a number and what it counts, as people say it. Pure; every sentence of ours with a count comes by here."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """``1 attempt``, ``0 attempts``, ``1,200 attempts``; the ``plural`` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
