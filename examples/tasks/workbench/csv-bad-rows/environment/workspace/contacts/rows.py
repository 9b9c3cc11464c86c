"""What a row must look like."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date

COLUMNS = ("email", "name", "born", "notes")
EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


@dataclass(frozen=True)
class Contact:
    """One contact. ``born`` may be unknown; ``notes`` may have several lines."""

    email: str
    name: str
    born: date | None
    notes: str


def parse_row(row: dict[str, str]) -> Contact:
    """The contact in a row. Raises ValueError, which says what is wrong."""
    email = row["email"].strip()
    if not EMAIL.fullmatch(email):
        raise ValueError(f"not an e-mail address: {email!r}")
    name = row["name"].strip()
    if not name:
        raise ValueError("the name is missing")
    born = row["born"].strip()
    return Contact(email, name, date.fromisoformat(born) if born else None, row["notes"])
