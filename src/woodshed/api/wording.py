"""Wording: what is wrong with a request, by its field and with the remedy, in place of the validator's own words.

Nothing of what was sent stands in it but the names of fields. Kinds of errors are pydantic's:
https://docs.pydantic.dev/latest/errors/validation_errors/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from woodshed.model.record import Record, siblings

_KINDS = {
    "string": "a text", "int": "a whole number", "float": "a number", "finite_number": "a finite number",
    "bool": "true or false", "list": "a list", "tuple": "a list", "dict": "an object", "model": "an object",
    "model_attributes": "an object", "string_unicode": "Unicode text",
}
_BOUNDS = {
    "greater_than_equal": ("is too small", "Give {ge} or more."),
    "greater_than": ("is too small", "Give more than {gt}."),
    "less_than_equal": ("is too large", "Give {le} or less."), "less_than": ("is too large", "Give less than {lt}."),
    "string_too_short": ("is too short", "Give at least {min_length} signs."),
    "string_too_long": ("is too long", "Give at most {max_length} signs."),
    "too_short": ("has too few entries", "Give at least {min_length}."),
    "too_long": ("has too many entries", "Give at most {max_length}."),
    "string_pattern_mismatch": ("has signs that may not stand there", "Give a text that fits {pattern}."),
    "enum": ("is none of the words that are known", "Say one of {expected}."),
    "literal_error": ("is none of the words that are known", "Say one of {expected}."),
}
_DOCS = "docs/rollouts.md tells what stands there."


class Wrong(NamedTuple):
    """The first thing that is wrong."""

    field: str
    detail: str
    remedy: str


def wording(errors: Sequence[Mapping[str, Any]], kind: type[Record] | None = None) -> Wrong:
    """What a validator's ``errors`` say of a body that was to be of this ``kind``, or of a query (None)."""
    paths = [_path(error, kind) for error in errors]
    detail, remedy = _said(errors[0], paths[0], kind)
    more = len({tuple(path) for path in paths}) - 1
    field = ".".join(str(part) for part in paths[0])[:200] or "body"
    return Wrong(field, f"{detail} (and {more} more)" if more else detail, remedy)


def _path(error: Mapping[str, Any], kind: type[Record] | None) -> list[int | str]:
    """Where it is, without what a validator adds to tell the branches of a choice apart."""
    path: list[int | str] = []
    for part in error["loc"]:
        if kind is None:
            kept = part not in ("query", "path", "body", "header")
        else:
            kept = isinstance(part, int) or part in siblings(kind, tuple(path)) or error["type"] == "extra_forbidden"
        if kept:
            path.append(part)
    return path


def _said(error: Mapping[str, Any], path: Sequence[int | str], kind: type[Record] | None) -> tuple[str, str]:
    """The detail and the remedy."""
    code, told = str(error["type"]), dict(error.get("ctx") or {})
    if code == "missing":
        return "is required, and missing", "Add it."
    if code == "json_invalid":
        place = re.search(r"line \d+ column \d+", str(told.get("error", "")))
        return "is no JSON" + (f" ({place[0]})" if place else ""), "Send one JSON object, in UTF-8."
    if code == "extra_forbidden":
        return "is no field that is known", _known(path, kind)
    if code in _BOUNDS:
        detail, remedy = _BOUNDS[code]
        return detail, remedy.format_map(told)
    for end in ("", "_type", "_parsing", "_from_float"):
        if code.endswith(end) and (expected := _KINDS.get(code.removesuffix(end))):
            return f"is not {expected}", f"Give {expected}."
    message = str(error["msg"]).removeprefix("Value error, ").rstrip(".")[:300]
    return message[:1].lower() + message[1:], _DOCS


def _known(path: Sequence[int | str], kind: type[Record] | None) -> str:
    known = sorted(siblings(kind, tuple(path[:-1]))) if kind is not None else []
    near = get_close_matches(str(path[-1])[:200], known, n=1)
    return f"Did you mean '{near[0]}'?" if near else f"Leave it out; known here: {', '.join(known) or 'nothing'}."
