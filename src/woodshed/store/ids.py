"""Ids: short, sortable by age, safe as file names. They name things; they are not secrets and grant nothing."""

from __future__ import annotations

import secrets
from datetime import datetime

from woodshed.model.event import now

ALPHABET = "23456789abcdefghjkmnpqrstvwxyz"
"""Lower case without the letters and digits that are mistaken for one another (0 o, 1 i l, u v)."""


def token(length: int) -> str:
    """Random characters of :data:`ALPHABET`; about 4.9 bits each."""
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def new_run_id(at: datetime | None = None) -> str:
    """``r-20261130-112052-k7p2``: UTC date and time, then four random characters for runs of the same second."""
    return f"r-{at or now():%Y%m%d-%H%M%S}-{token(4)}"


def new_regrade_id(at: datetime | None = None) -> str:
    """``g-20261130-112052-k7p2``: as a run's, for what other rules make of one."""
    return f"g-{at or now():%Y%m%d-%H%M%S}-{token(4)}"


def new_schedule_id(at: datetime | None = None) -> str:
    """``s-20261130-112052-k7p2``: as a run's, for a schedule."""
    return f"s-{at or now():%Y%m%d-%H%M%S}-{token(4)}"


def attempt_id(run: str, number: int) -> str:
    """``<run>.<number>``; numbers count from 1 in the order the run was planned."""
    return f"{run}.{number}"


def run_of(attempt: str) -> str:
    """The run an attempt's id belongs to."""
    return attempt.rpartition(".")[0]
