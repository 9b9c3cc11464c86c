"""Read a file, row by row."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

from contacts.rows import Contact, parse_row


@dataclass(frozen=True)
class BadRow:
    """A row that was left out: the line on which it begins, counted from 1 as an editor does, and the reason."""

    line: int
    reason: str


@dataclass
class Import:
    """What a file holds."""

    contacts: list[Contact] = field(default_factory=list)
    bad_rows: list[BadRow] = field(default_factory=list)


def read_contacts(path: Path) -> Import:
    """The contacts in a CSV file with a header."""
    result = Import()
    with path.open() as file:
        for row in csv.DictReader(file):
            result.contacts.append(parse_row(row))
    return result
