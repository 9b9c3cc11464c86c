"""Which files of a context are left out (``.dockerignore``), and patterns of names as Go's ``filepath.Match`` has them.

Rules: Docker's build context documentation, ".dockerignore files".
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from woodshed.errors import UsageError


def pattern(text: str, *, deep: bool = False) -> re.Pattern[str]:
    """What matches a whole path. ``*`` and ``?`` stay within a part of it; with ``deep``, ``**`` crosses any number.

    Raises ValueError for a pattern that is none.
    """
    out, at = "", 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "*":
            if deep and text[at:at + 1] == "*":
                at += 1
                if text[at:at + 1] == "/":
                    at += 1
                    out += "(?:.*/)?"
                else:
                    out += ".*"
            else:
                out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[":
            part, at = _class(text, at)
            out += part
        elif char == "\\":
            if at >= len(text):
                raise ValueError(f"{text!r} ends with an escape")
            out += re.escape(text[at])
            at += 1
        else:
            out += re.escape(char)
    return re.compile(out, re.DOTALL)


def _class(text: str, at: int) -> tuple[str, int]:
    negated = text[at:at + 1] == "^"
    at += negated
    out = ""
    while True:
        low, at = _one(text, at)
        high = low
        if text[at:at + 1] == "-":
            high, at = _one(text, at + 1)
        if low > high:
            raise ValueError(f"{text!r} has a range that runs backwards")
        out += f"{re.escape(low)}-{re.escape(high)}"
        if text[at:at + 1] == "]":
            return f"(?!/)[{'^' if negated else ''}{out}]", at + 1


def _one(text: str, at: int) -> tuple[str, int]:
    if at < len(text) and text[at] == "\\":
        at += 1
    elif text[at:at + 1] in ("-", "]"):
        raise ValueError(f"{text!r} has a bracket without its characters")
    if at >= len(text):
        raise ValueError(f"{text!r} has a bracket that does not end")
    return text[at], at + 1


class Ignored:
    """The rules of one ``.dockerignore``: the last that matches a path, or a folder above it, decides."""

    def __init__(self, text: str = "", file: object = ".dockerignore") -> None:
        """Raises UsageError naming the line of a pattern that is none."""
        self._rules: list[tuple[bool, re.Pattern[str]]] = []
        for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
            line = "" if line.startswith("#") else line.strip()
            kept = line.startswith("!")
            line = line[1:].strip() if kept else line
            if not line:
                continue
            clean = posixpath.normpath(line).lstrip("/")
            try:
                self._rules.append((kept, pattern(clean, deep=True)))
            except ValueError as error:
                raise UsageError(str(error), file=file, field=f"line {number}", remedy="Mend the pattern.") from None

    def __contains__(self, path: str) -> bool:
        """Whether ``path``, relative to the context, is left out."""
        parts = path.split("/")
        above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        return self._left_out(above)

    def _left_out(self, above: Sequence[str]) -> bool:
        out = False
        for kept, rule in self._rules:
            if out is kept and any(rule.fullmatch(path) for path in above):
                out = not kept
        return out

    @property
    def keeps_again(self) -> bool:
        """Whether something within a folder that is left out may be kept: then all must be looked at."""
        return any(kept for kept, _ in self._rules)
