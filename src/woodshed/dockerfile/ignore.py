"""Which files of a context are left out (``.dockerignore``), and patterns of names as Go's ``filepath.Match`` has them.

Rules: Docker's build context documentation, ".dockerignore files".
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from woodshed.errors import UsageError

_DEEP, _MOST_LOOSE = "**", 3
_MOST_RULES = 10_000


def pattern(text: str, *, deep: bool = False) -> re.Pattern[str]:
    """What matches a whole path. ``*`` and ``?`` stay within a part of it; with ``deep``, ``**`` crosses any number.

    A pattern may be an enemy's: what each wildcard but the last of its kind has taken is not given back, which changes
    no answer and keeps the time polynomial. Raises ValueError for a pattern that is none.
    """
    blocks: list[list[str]] = [[]]
    for part in _parts(text):
        if deep and part == [_DEEP]:
            blocks.append([])
        elif _DEEP in part and deep:
            return re.compile(_loose(text), re.DOTALL)
        else:
            blocks[-1].append(_part(part))
    out = "/".join(blocks[0])
    for number, block in enumerate(blocks[1:], 1):
        out += "/" if number == 1 and blocks[0] else ""
        inner = "/".join(block)
        if number == len(blocks) - 1:
            out += f"(?:[^/]*/)*{inner}" if block else ".*"
        elif block:
            out += f"(?>(?:[^/]*/)*?{inner}/)"
    return re.compile(out, re.DOTALL)


def _parts(text: str) -> list[list[str]]:
    """Between slashes: expressions for one character each, ``*`` and ``**``."""
    parts, at = list[list[str]]([[]]), 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "/":
            parts.append([])
        elif char == "*":
            more = len(text) - len(text[at:].lstrip("*")) - at
            at += more
            parts[-1].append(_DEEP if more else "*")
        elif char == "?":
            parts[-1].append("[^/]")
        elif char == "[":
            one, at = _class(text, at)
            parts[-1].append(one)
        elif char == "\\":
            if at >= len(text):
                raise ValueError(f"{text!r} ends with an escape")
            parts[-1].append(re.escape(text[at]))
            at += 1
        else:
            parts[-1].append(re.escape(char))
    return parts


def _part(part: list[str]) -> str:
    """The expression of one part of a path; ``**`` in it is ``*``."""
    chunks = [""]
    for one in part:
        if one in ("*", _DEEP):
            chunks.append("")
        else:
            chunks[-1] += one
    middle = "".join(f"(?>[^/]*?{chunk})" for chunk in chunks[1:-1] if chunk)
    return chunks[0] + middle + (f"[^/]*{chunks[-1]}" if len(chunks) > 1 else "")


def _loose(text: str) -> str:
    """Of a pattern with ``**`` beside other characters, which crosses slashes as well."""
    parts = _parts(text)
    if sum(one in ("*", _DEEP) for part in parts for one in part) > _MOST_LOOSE:
        raise ValueError(f"{text[:80]!r} has too many wildcards beside a ** that is no part of its own")
    return "/".join("".join({"*": "[^/]*", _DEEP: ".*"}.get(one, one) for one in part) for part in parts).replace(
        ".*/", "(?:.*/)?")


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
                if len(self._rules) >= _MOST_RULES:
                    raise ValueError(f"there are more than {_MOST_RULES} patterns")
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
