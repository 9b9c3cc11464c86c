"""Shields: a family's own marks inside what its calls carry, written so that no reader takes them for marks. Pure.

In JSON a mark's first letter is written as ``\\uXXXX``, which any JSON reader gives back. Formats that carry plain text
between tags have no way to write those tags as text; there ``<`` before a mark becomes ``&lt;``, and ``&`` before what
would be read as such ``&amp;``: nothing else of the text changes, and it comes back whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any


class Shield:
    """For formats that carry plain text. ``tails`` is a pattern of what follows ``<`` in the family's marks."""

    def __init__(self, tails: str) -> None:
        self._marks = re.compile(rf"<(?={tails})|&(?=(?:amp;)*lt;(?:{tails}))")
        self._shielded = re.compile(rf"&((?:amp;)*)lt;(?={tails})")

    def on(self, text: str) -> str:
        """``text`` without a mark of the family in it."""
        return self._marks.sub(lambda found: "&lt;" if found[0] == "<" else "&amp;", text)

    def off(self, text: str) -> str:
        """What :meth:`on` was given."""
        return self._shielded.sub(lambda found: f"&{found[1][4:]}lt;" if found[1] else "<", text)


def dumped(value: Any, marks: Sequence[str]) -> str:
    """``value`` as JSON in which no mark occurs. A mark begins with a sign that JSON has only in strings before it."""
    text = json.dumps(value, ensure_ascii=False)
    for mark in marks:
        if mark in text:
            text = text.replace(mark, f"\\u{ord(mark[0]):04x}{mark[1:]}")
    return text
