"""Cursor: a place in a text that only moves forward, so that reading is linear whatever the text is. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

from woodshed.model import ToolCall, printable, read_object, written_call

_SHOWN = 40
_BLANK = " \t\r\n"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


_JSON = json.JSONDecoder(strict=False, parse_constant=_refuse)


class Wrong(Exception):
    """What is written is no call, for what the text says: one sentence with the place."""


class Cursor:
    """``at`` counts characters from the start of ``text``."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text, self.at = text, at

    @property
    def over(self) -> bool:
        """Nothing follows."""
        return self.at >= len(self.text)

    def blank(self) -> Cursor:
        """Past white space."""
        while self.at < len(self.text) and self.text[self.at] in _BLANK:
            self.at += 1
        return self

    def sees(self, mark: str) -> bool:
        """``mark`` stands here."""
        return self.text.startswith(mark, self.at)

    def takes(self, *marks: str) -> bool:
        """One of ``marks`` stood here; the cursor is past it."""
        for mark in marks:
            if self.sees(mark):
                self.at += len(mark)
                return True
        return False

    def needs(self, mark: str) -> None:
        """Past ``mark``, white space before it skipped. Raises Wrong where something else stands."""
        if not self.blank().takes(mark):
            raise self.wrong(f"{mark} is missing")

    def until(self, mark: str) -> str | None:
        """The text before the next ``mark``, with the cursor past it; None, and no move, where there is none."""
        end = self.text.find(mark, self.at)
        if end < 0:
            return None
        found, self.at = self.text[self.at:end], end + len(mark)
        return found

    def to(self, *marks: str) -> str:
        """The text before the first of ``marks``, with the cursor upon it, or at the end."""
        found = any_of(marks).search(self.text, self.at)
        start, self.at = self.at, found.start() if found else len(self.text)
        return self.text[start:self.at]

    def json(self) -> Any:
        """The JSON value here, with the cursor past it. Raises Wrong, without a move, where there is none.

        Only where there is one: to fail, the library counts the lines from the start of the text.
        """
        try:
            value, end = _JSON.raw_decode(self.text, self.blank().at)
            storable(value)
        except (ValueError, RecursionError) as error:
            raise Wrong(f"not valid JSON: {type(error).__name__}") from None
        self.at = end
        return value

    def arguments(self, name: str, *ends: str) -> ToolCall:
        """The call of ``name`` with the JSON object here; where that is none, its text reaches to one of ``ends``."""
        if self.blank().sees("{"):
            try:
                return ToolCall(id="", name=printable(name), arguments=self.json())
            except Wrong:
                pass
        written = self.to(*ends).rstrip()
        if not written and self.over:
            return ToolCall(id="", name=printable(name), raw="", error="missing: the answer ends before them")
        return written_call("", printable(name), written)

    def named(self, keys: Sequence[str], *ends: str, bare: bool = True) -> ToolCall | str:
        """The call that the JSON object here is: its name, and its arguments below one of ``keys``.

        Not ``bare``, an object without arguments is no call.
        """
        start = self.blank().at
        try:
            value = self.json() if self.sees("{") else None
        except Wrong:
            value = None
        if value is None:
            written = self.to(*ends).rstrip()
            value, error = read_object(written)
            if value is None:
                return _salvaged(written, error or "")
        if (call := as_call(value, keys)) is not None and (bare or any(key in value for key in keys)):
            return call
        return f"it needs \"name\" and \"{keys[0]}\", here: {printable(self.text[start:start + _SHOWN])}"

    def wrong(self, what: str) -> Wrong:
        """``what``, with the place."""
        before, after = self.text[max(0, self.at - _SHOWN):self.at], self.text[self.at:self.at + _SHOWN]
        return Wrong(f"not well formed: {what}, here: {printable(before)} >>> {printable(after)}")


@lru_cache(maxsize=256)
def any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    """Finds the first of ``marks``: in one pass, where a search for each would be a pass for each that is missing."""
    return re.compile("|".join(re.escape(mark) for mark in marks))


def storable(value: Any) -> None:
    """Return where ``value`` can be stored and sent. Raises ValueError: infinities, halves of surrogate pairs."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")


def as_call(value: Any, keys: Sequence[str]) -> ToolCall | None:
    """The call that ``value`` is; arguments may be JSON in a string, as servers write them, or missing."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments: Any = next((value[key] for key in keys if key in value), {})
    if isinstance(arguments, str):
        return written_call("", value["name"], arguments)
    return ToolCall(id="", name=value["name"], arguments=arguments) if isinstance(arguments, dict) else None


def _salvaged(written: str, error: str) -> ToolCall | str:
    """The call of the name that stands at the start of broken JSON, so that it is answered as that tool's."""
    head = Cursor(written[:200])
    if head.until('"name"') is not None and head.blank().takes(":") and head.blank().takes('"'):
        name = head.until('"')
        if name and "\\" not in name:
            return ToolCall(id="", name=printable(name), raw=printable(written), error=error)
    return f"the tool call is {error}"
