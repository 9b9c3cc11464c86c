"""Records as JSON text and back: lossless for surrogate escapes, and never failing on what an event was given."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import orjson

from woodshed.model import Record

MAX_EVENT_BYTES = 16_000_000
"""An event's JSON beyond this is replaced by a note of its size: big content belongs in a blob."""

_DEPTH = 64
_BITS = 4096
_OURS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
"""Types that have a writing of their own here."""


def stamp(at: datetime) -> str:
    """Fixed-width ISO 8601 in UTC with microseconds, so that text order is time order."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def dump(record: Record) -> str:
    """ASCII JSON of a record. Not ``model_dump_json``: that refuses names of files that are not UTF-8."""
    return json.dumps(record.to_json(), separators=(",", ":"))


def dump_data(data: Mapping[str, Any]) -> str:
    """ASCII JSON of an event's data, whatever it holds: what JSON has no word for is described. Never raises."""
    text = _plainly(data)
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False) if text is None else text
    except Exception:  # any value's own conversion may fail: the fact must be kept all the same
        text = json.dumps(_plain(data, _DEPTH), separators=(",", ":"))
    if len(text) > MAX_EVENT_BYTES:
        text = json.dumps({"truncated": True, "bytes": len(text), "start": text[:1000]})
    return text


def _plainly(data: Mapping[str, Any]) -> str | None:
    """What the fast writer makes of plain data in ASCII: tokens are long lists, and an answer waits for its record.

    None where it refuses, and where it may have written null for a number that is none.
    """
    try:
        written = orjson.dumps(data, option=_OURS)
    except TypeError:
        return None
    return written.decode("ascii") if written.isascii() and b"null" not in written else None


def _plain(value: Any, depth: int) -> Any:
    """``value`` in JSON's own types. Cycles and deep nesting end in a short description."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > _BITS:
        return hex(value)  # Python refuses to write very long integers in decimal
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "surrogateescape")
    if depth == 0:
        return "(nested too deeply)"
    try:
        if isinstance(value, Record):
            return _plain(value.to_json(), depth - 1)
        if isinstance(value, Mapping):
            return {_key(key): _plain(inner, depth - 1) for key, inner in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_plain(inner, depth - 1) for inner in value]
        return stamp(value) if isinstance(value, datetime) else str(value)
    except Exception as error:
        return f"({type(value).__name__}: {type(error).__name__})"


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(_plain(key, 1))
