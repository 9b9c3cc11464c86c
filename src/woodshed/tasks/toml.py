"""Plain values as TOML 1.0 text that the standard library reads back equal. No dependency: the reader is in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

from woodshed.errors import UsageError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def dumps(table: Mapping[str, Any]) -> str:
    """``table`` as a TOML document: values first, then tables. Raises UsageError for what TOML cannot hold."""
    lines: list[str] = []
    _table(table, (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and (values or not table):
        lines += ["", f"[{'.'.join(_key(part) for part in path)}]"]
    lines += [f"{_key(key)} = {_value(value, (*path, key))}" for key, value in values.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            _table(value, (*path, key), lines)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    return '"' + "".join(_character(character) for character in text) + '"'


def _character(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if "\ud800" <= character <= "\udfff":
        raise UsageError("text that is no Unicode (a lone surrogate) cannot be written as TOML")
    return f"\\u{ord(character):04X}" if ord(character) < 32 or ord(character) == 127 else character


def _value(value: Any, path: tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        parts = [_value(item, path) for item in value]
        flat = f"[{', '.join(parts)}]"
        return flat if len(flat) <= 100 else "[\n" + "".join(f"  {part},\n" for part in parts) + "]"
    if isinstance(value, Mapping):  # inside an array: an inline table, on one line
        return "{" + ", ".join(f"{_key(key)} = {_value(item, (*path, key))}" for key, item in value.items()) + "}"
    raise UsageError(f"{type(value).__name__} cannot be written as TOML", field=".".join(path))



def _number(value: float) -> str:
    text = repr(value)
    if isinstance(value, float) and text.lstrip("-") in ("inf", "nan"):
        return text
    return text if isinstance(value, int) or any(mark in text for mark in ".e") else text + ".0"
