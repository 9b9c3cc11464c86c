"""Hearing: an answer in a family's format, in one piece or as it comes, parted into words and calls. Pure and linear.

Thoughts between ``<think>`` and ``</think>`` are neither, as long as no call has begun.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from woodshed.harness.dialects.cursor import any_of
from woodshed.harness.dialects.families import Format, Found, Words
from woodshed.harness.dialects.typed import Types
from woodshed.model import ToolCall

_THINK, _THOUGHT = "<think>", "</think>"
_BLANK = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Heard:
    """The words of an answer, and what it calls. After a call with an error, or a sentence, nothing more was read."""

    said: str
    found: tuple[ToolCall | str, ...] = ()


class Hearing:
    """One answer. Feed it as it comes, in pieces of any size; what is heard does not depend on where it was cut."""

    def __init__(self, family: Format, types: Types) -> None:
        self._family, self._types = family, types
        self._marks = (_THINK, *family.openers)
        self._held, self._said, self._body = "", list[str](), list[str]()
        self._thinking = self._begun = self._calling = False

    def feed(self, piece: str) -> str:
        """The words that are certain to be such now: no part of a thought, of a call, or of a mark."""
        if self._calling:
            self._body.append(piece)
            return ""
        text, self._held = self._held + piece, ""
        words = "".join(self._words(text))
        self._said.append(words)
        return words

    def close(self) -> Heard:
        """All that was heard. What was held back as a mark that never came is words."""
        if not self._calling:
            return Heard("".join(self._said) + ("" if self._thinking else self._held))
        body, found = "".join(self._body), list[ToolCall | str]()
        for item in _until_broken(self._family.read(body, self._types)):
            if isinstance(item, Words):
                self._said.append(item.text)
            else:
                found.append(item)
        if not found and not self._family.silent:
            self._said.append(body)
        return Heard("".join(self._said), tuple(found))

    def _words(self, text: str) -> Iterator[str]:
        """Those of ``text``, from the state it is in; what must wait is held, what begins a call is the body."""
        at, marks = 0, any_of(self._marks)
        while at < len(text):
            if self._thinking:
                end = text.find(_THOUGHT, at)
                self._held = text[max(at, len(text) - len(_THOUGHT) + 1):] if end < 0 else ""
                if end < 0:
                    return
                at, self._thinking = end + len(_THOUGHT), False
                continue
            found = marks.search(text, at)
            start = found.start() if found else len(text) - _begins(text, at, self._marks)
            if not self._begun and self._family.first:
                sign = _BLANK.match(text, at)
                first = sign.end() if sign else at
                if first < start and text[first] in self._family.first:
                    yield text[at:first]
                    self._call(text[first:])
                    return
            words, at = text[at:start], start
            self._begun = self._begun or bool(words.strip())
            yield words
            if found is None:
                self._held = text[start:]
                return
            if found[0] != _THINK:
                self._call(text[start:])
                return
            at, self._thinking = found.end(), True

    def _call(self, body: str) -> None:
        self._calling = True
        self._body.append(body)


def hear(text: str, family: Format, types: Types) -> Heard:
    """What ``text`` says and calls."""
    hearing = Hearing(family, types)
    hearing.feed(text)
    return hearing.close()


def _until_broken(found: Iterable[Found]) -> Iterator[Found]:
    for item in found:
        yield item
        if isinstance(item, str) or (isinstance(item, ToolCall) and item.error):
            return


def _begins(text: str, at: int, marks: Iterable[str]) -> int:
    """How many of the last characters of ``text`` could be the beginning of a mark."""
    most = min(max(map(len, marks)) - 1, len(text) - at)
    return next((size for size in range(most, 0, -1)
                 if any(mark.startswith(text[len(text) - size:]) for mark in marks)), 0)
