"""Rows of a JSONL file, bounded and checked; an error names file, line and field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from woodshed import given
from woodshed.errors import UsageError

MAX_ROW_BYTES = 1_000_000
MAX_ITEM_BYTES = 50_000_000
"""Of a row that may hold patches and lists of tests."""
MAX_ROWS = 100_000
MAX_BYTES = 200_000_000
"""Of all rows together: they are held in memory, and a compressed file may be a bomb."""


class Lines(Protocol):
    """A binary stream read by line: a file, or a member of an archive."""

    def readline(self, size: int, /) -> bytes:
        """At most ``size`` bytes, up to and with the next newline; empty at the end."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of ``file``; ``values`` are the text fields asked for."""

    file: Path
    line: int
    values: dict[str, str]

    def __getitem__(self, field: str) -> str:
        return self.values[field]

    def wrong(self, field: str, message: str, remedy: str) -> UsageError:
        """The error that names this row's file, line and ``field``."""
        return UsageError(message, file=f"{self.file}:{self.line}", field=field, remedy=remedy)


def read_rows(file: Path, fields: Sequence[str], stream: Lines | None = None) -> Iterator[Row]:
    """The rows of ``file`` (or of ``stream``, which ``file`` names), blank lines left out.

    Raises UsageError for a line that is too long, is no JSON object, or lacks a text field.
    """
    if stream is not None:
        yield from _rows(file, fields, stream)
        return
    with _opened(file, "Pass a JSONL file.") as opened:
        yield from _rows(file, fields, opened)


def _rows(file: Path, fields: Sequence[str], stream: Lines) -> Iterator[Row]:
    line = size = 0
    while raw := stream.readline(MAX_ROW_BYTES + 1):
        line, size = line + 1, size + len(raw)
        where = f"{file}:{line}"
        if len(raw) > MAX_ROW_BYTES:
            raise UsageError(f"a line longer than {MAX_ROW_BYTES} bytes", file=where, remedy="Is this the right file?")
        if line > MAX_ROWS or size > MAX_BYTES:
            raise UsageError(f"more than {MAX_ROWS} rows or {MAX_BYTES} bytes", file=file, remedy="Split it.")
        if raw.strip():
            yield _row(file, line, raw, fields)


def _row(file: Path, line: int, raw: bytes, fields: Sequence[str]) -> Row:
    where = f"{file}:{line}"
    data = _object(raw, where)
    values = {}
    for field in fields:
        value = data.get(field)
        if not isinstance(value, str):
            kind = "missing" if field not in data else f"no text but {type(value).__name__}"
            raise UsageError(kind, file=where, field=field, remedy="Is this the right kind of file?")
        if any("\ud800" <= character <= "\udfff" for character in value) or "\0" in value:
            raise UsageError("holds characters that no text file can", file=where, field=field, remedy="Mend the row.")
        values[field] = value
    return Row(file, line, values)


@dataclass(frozen=True, slots=True)
class Item:
    """One row of ``file`` with values of any kind. ``line`` counts from 1."""

    file: Path
    line: int
    values: dict[str, Any]

    def wrong(self, field: str, message: str, remedy: str) -> UsageError:
        """The error that names this row's file, line and ``field``."""
        return UsageError(message, file=f"{self.file}:{self.line}", field=field, remedy=remedy)

    def text(self, field: str) -> str:
        """A text. Raises UsageError for another value, or for characters that no file can hold."""
        value = self.values.get(field)
        if not isinstance(value, str):
            kind = "missing" if value is None else f"no text but {type(value).__name__}"
            raise self.wrong(field, kind, "Is this the right kind of file?")
        if any("\ud800" <= character <= "\udfff" for character in value) or "\0" in value:
            raise self.wrong(field, "holds characters that no text file can", "Mend the row.")
        return value

    def table(self, field: str) -> dict[str, Any]:
        """An object, or one as JSON. Raises UsageError."""
        value = self.values.get(field)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = None
        if not isinstance(value, dict):
            raise self.wrong(field, "no object, nor one as JSON", "Is this the right kind of file?")
        return value


def read_items(file: Path) -> Iterator[Item]:
    """The rows of a JSONL file, blank lines left out, one at a time.

    Raises UsageError for a line that is too long or no JSON object.
    """
    with _opened(file, "Pass a JSONL or Parquet file.") as opened:
        line = 0
        while raw := opened.readline(MAX_ITEM_BYTES + 1):
            line += 1
            where = f"{file}:{line}"
            if len(raw) > MAX_ITEM_BYTES or line > MAX_ROWS:
                raise UsageError(f"more than {MAX_ITEM_BYTES} bytes in a line, or {MAX_ROWS} rows", file=where,
                                 remedy="Is this the right file? Split it.")
            if raw.strip():
                yield Item(file, line, _object(raw, where))


def _opened(file: Path, remedy: str) -> BinaryIO:
    try:
        if not file.is_file():
            raise UsageError("no such file", file=file, remedy=remedy)
        return file.open("rb")
    except OSError as error:
        raise given.unread(error, file) from None


def _object(raw: bytes, where: str) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except UnicodeDecodeError as error:
        raise given.no_text(error, where) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"no JSON: {error}", file=where, remedy="Mend or remove the line.") from None
    if not isinstance(data, dict):
        raise UsageError("no JSON object", file=where, remedy="Each line is one object.")
    return data
