"""Literals as calls in Python's syntax and Gemma's have them, read without an interpreter. Pure and linear.

Python's own ``ast`` refuses line breaks in strings, which models write, and its depth is bounded by the C stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from woodshed.harness.dialects.cursor import Cursor
from woodshed.harness.dialects.shield import Shield

T = TypeVar("T")
_DEEPEST = 64
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"[^\W\d]\w*")
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_PLAIN = {quote: re.compile(rf"[^{quote}\\]+") for quote in "'\""}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_SIGNS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_BARE_KEY = re.compile(r"[\w.-]+")
_WRITTEN_KEY = re.compile(r"[^:,{}\[\]<]*")
_BARE_TEXT = re.compile(r"[^,\]}<\n]*")


class Python:
    """Values as Python writes them, lists and dictionaries in each other. Raises Wrong."""

    def read(self, cursor: Cursor, depth: int = 0) -> Any:
        """The value here, with the cursor past it."""
        if depth > _DEEPEST:
            raise cursor.wrong(f"more than {_DEEPEST} values in each other")
        if cursor.blank().takes("["):
            return items(cursor, "]", lambda: self.read(cursor, depth + 1))
        if cursor.takes("("):
            return items(cursor, ")", lambda: self.read(cursor, depth + 1))
        if cursor.takes("{"):
            return dict(items(cursor, "}", lambda: self._pair(cursor, depth + 1)))
        if cursor.text[cursor.at:cursor.at + 1] in ("'", '"'):
            return _string(cursor)
        return _scalar(cursor)

    def write(self, value: Any) -> str:
        """``value``, as it is read."""
        if isinstance(value, bool) or value is None:
            return str(value)
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.write(key)}: {self.write(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(self.write(one) for one in value) + "]"
        return json.dumps(value, ensure_ascii=False)  # JSON's escapes mean the same in Python

    def _pair(self, cursor: Cursor, depth: int) -> tuple[str, Any]:
        key = self.read(cursor, depth)
        cursor.needs(":")
        return key if isinstance(key, str) else json.dumps(key), self.read(cursor, depth)


class Gemma:
    """Values as Gemma writes them: keys bare, strings between two marks, which have no escapes. Raises Wrong."""

    def __init__(self, mark: str, shield: Shield) -> None:
        self._mark, self._shield = mark, shield

    def read(self, cursor: Cursor, depth: int = 0) -> Any:
        """The value here, with the cursor past it. A string without its marks is taken where nothing else fits."""
        if depth > _DEEPEST:
            raise cursor.wrong(f"more than {_DEEPEST} values in each other")
        if cursor.blank().takes("["):
            return items(cursor, "]", lambda: self.read(cursor, depth + 1))
        if cursor.takes("{"):
            return self.pairs(cursor, depth + 1)
        if cursor.takes(self._mark):
            return self._text(cursor)
        found = _BARE_TEXT.match(cursor.text, cursor.at)
        word = found[0].strip() if found else ""
        if not word:
            raise cursor.wrong("a value is missing")
        cursor.at += len(found[0]) if found else 0
        if word in _WORDS:
            return _WORDS[word]
        return _number(word, cursor) if _NUMBER.fullmatch(word) else word

    def pairs(self, cursor: Cursor, depth: int = 0) -> dict[str, Any]:
        """What stands before the next ``}``, past the ``{`` before it."""
        return dict(items(cursor, "}", lambda: self._pair(cursor, depth), commas=False))

    def write(self, value: Any) -> str:
        """``value``, as it is read."""
        if isinstance(value, str):
            return f"{self._mark}{self._shield.on(value)}{self._mark}"
        if isinstance(value, dict):
            return "{" + self.inside(value) + "}"
        if isinstance(value, list):
            return "[" + ",".join(self.write(one) for one in value) + "]"
        return json.dumps(value)

    def inside(self, value: dict[str, Any]) -> str:
        """The pairs of ``value``, without the braces."""
        return ",".join(f"{key if _BARE_KEY.fullmatch(key) else self.write(key)}:{self.write(one)}"
                        for key, one in value.items())

    def _pair(self, cursor: Cursor, depth: int) -> tuple[str, Any]:
        if cursor.blank().takes(self._mark):
            key = self._text(cursor)
        else:
            written = _WRITTEN_KEY.match(cursor.text, cursor.at)
            key = written[0].strip().strip("\"'") if written else ""
            cursor.at += len(written[0]) if written else 0
        cursor.needs(":")
        return key, self.read(cursor, depth)

    def _text(self, cursor: Cursor) -> str:
        text = cursor.until(self._mark)
        if text is None:
            raise cursor.wrong(f"a text is not ended by {self._mark}")
        return self._shield.off(text)


def items(cursor: Cursor, close: str, one: Callable[[], T], *, commas: bool = True) -> list[T]:
    """What ``one`` reads, between commas, to ``close``, before which one more may stand. Not ``commas``, they may lack.
    """
    found: list[T] = []
    while not cursor.blank().takes(close):
        if found and (commas or cursor.sees(",")):
            cursor.needs(",")
            if cursor.blank().takes(close):
                break
        found.append(one())
    return found


def _string(cursor: Cursor) -> str:
    quote = cursor.text[cursor.at]
    end = quote * 3 if cursor.sees(quote * 3) else quote
    start, plain, parts = cursor.at, _PLAIN[quote], list[str]()
    cursor.at += len(end)
    while not cursor.takes(end):
        if run := plain.match(cursor.text, cursor.at):
            parts.append(run[0])
            cursor.at = run.end()
        elif escape := _ESCAPE.match(cursor.text, cursor.at):
            parts.append(_unescaped(escape))
            cursor.at = escape.end()
        elif cursor.over or cursor.sees("\\"):
            cursor.at = start
            raise cursor.wrong(f"a string is not ended by {end}")
        else:  # one quote in a string that three of them end
            parts.append(quote)
            cursor.at += 1
    return "".join(parts)


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code:
        return chr(int(code, 16)) if int(code, 16) < 0x110000 else escape[0]
    return _SIGNS.get(escape[4], escape[4] if escape[4] in "\\'\"/" else escape[0])


def _scalar(cursor: Cursor) -> Any:
    if number := _NUMBER.match(cursor.text, cursor.at):
        value = _number(number[0], cursor)
        cursor.at = number.end()
        return value
    word = _WORD.match(cursor.text, cursor.at)
    if word is None or word[0] not in _WORDS:
        raise cursor.wrong("a value is missing: strings stand in quotes")
    cursor.at = word.end()
    return _WORDS[word[0]]


def _number(text: str, cursor: Cursor) -> int | float:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            raise cursor.wrong("a number cannot be read") from None
