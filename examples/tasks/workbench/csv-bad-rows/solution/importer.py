"""Read a file, row by row."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from contacts.rows import COLUMNS, Contact, parse_row


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
    """The contacts in a CSV file with a header. Raises ValueError when it has no header that names the columns."""
    result = Import()
    seen: dict[str, int] = {}
    # Bytes that are not UTF-8 become lone surrogates, so that they stay within their row. Without newline="" the line
    # breaks in quoted fields would be changed.
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        rows = _rows(file)
        columns = _columns(next(rows, (1, []))[1])
        for line, row in rows:
            try:
                contact = parse_row(_fields(row, columns))
                first = seen.setdefault(contact.email.lower(), line)
                if first != line:
                    raise ValueError(f"same address as line {first}")
            except ValueError as error:
                result.bad_rows.append(BadRow(line, str(error)))
            else:
                result.contacts.append(contact)
    return result


def _rows(file: Iterator[str]) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """Each row that is not empty, with the line on which it begins; the error where csv cannot read it."""
    reader = csv.reader(file)
    while True:
        line = reader.line_num + 1
        try:
            row: list[str] | csv.Error = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            row = error
        if row or line == 1:
            yield line, row


def _columns(header: list[str] | csv.Error) -> list[str]:
    """The names of the columns in their order."""
    if isinstance(header, csv.Error):
        raise ValueError(str(header))
    names = [name.strip().lower() for name in header]
    for column in COLUMNS:
        if names.count(column) != 1:
            raise ValueError(f"the header must name the column {column!r} once")
    return names


def _fields(row: list[str] | csv.Error, columns: list[str]) -> dict[str, str]:
    if isinstance(row, csv.Error):
        raise ValueError(str(row))
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        raise ValueError("not valid UTF-8") from None
    if len(row) != len(columns):
        raise ValueError(f"expected {len(columns)} fields, found {len(row)}")
    return dict(zip(columns, row, strict=True))
