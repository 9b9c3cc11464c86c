"""Gitignore-like patterns over paths relative to a folder. Pure.

A pattern without an inner slash holds at any depth; with one it is anchored at the folder. ``*`` and ``?`` stay within
a name, ``**`` spans folders, ``[a-z]`` and ``[!a-z]`` are classes. A pattern that holds for a folder holds for all
below it, and ``folder/**`` holds for the folder itself too (gitignore's does not: here a folder's fate is its
content's). ``!pattern`` takes back what an earlier one said; unlike in gitignore also below a matched folder.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass


def normal(path: str) -> str:
    """``path`` in NFC: how names are compared. Surrogate escapes (bytes that are no UTF-8) stay as they are."""
    return unicodedata.normalize("NFC", path)


def lookalike(path: str) -> str:
    """The form under which names that a person cannot tell apart are equal: compatibility forms and case folded."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())


def translate(pattern: str) -> str:
    """The source of a regular expression (for ``fullmatch`` with DOTALL) that holds where ``pattern`` does."""
    body = normal(pattern).strip()
    anchored = "/" in body.rstrip("/")
    while body.endswith(("/", "/**")):
        body = body[:-1] if body.endswith("/") else body[:-3]
    parts = [part for part in body.split("/") if part]
    source = "" if anchored else "(?:.*/)?"
    for index, part in enumerate(parts):
        if part == "**":
            source += ".*" if index == len(parts) - 1 else "(?:.*/)?"
        else:
            source += _segment(part) + ("" if index == len(parts) - 1 else "/")
    return f"{source}(?:/.*)?"


def _segment(part: str) -> str:
    source, index = "", 0
    while index < len(part):
        sign = part[index]
        closing = part.find("]", index + 2) if sign == "[" else -1
        if closing > 0:
            inner = part[index + 1 : closing]
            negated, inner = inner[0] in "!^", inner[1:] if inner[0] in "!^" else inner
            inner = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner)
            source, index = f"{source}(?!/)[{'^' if negated else ''}{inner}]", closing + 1
            continue
        if sign == "*":
            source = source if source.endswith("[^/]*") else source + "[^/]*"
        else:
            source += "[^/]" if sign == "?" else re.escape(sign)
        index += 1
    return source


def compiled(patterns: Iterable[str]) -> re.Pattern[str]:
    """One expression that holds where any of ``patterns`` does; nowhere when there is none."""
    sources = [translate(pattern) for pattern in patterns]
    return re.compile("|".join(sources) or r"(?!)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Patterns:
    """An ordered list of patterns of which the last that holds decides."""

    rules: tuple[tuple[bool, re.Pattern[str]], ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Patterns:
        """The list as written, ``!`` first where a pattern takes back. Raises ValueError for what is no pattern."""
        rules = []
        for pattern in patterns:
            wanted = not pattern.startswith("!")
            body = pattern if wanted else pattern[1:]
            if not body.strip("/ *"):
                raise ValueError(f"pattern {pattern!r} would hold everywhere")
            try:
                rules.append((wanted, re.compile(translate(body), re.DOTALL)))
            except re.error as error:
                raise ValueError(f"pattern {pattern!r}: {error}") from None
        return cls(tuple(rules))

    def decide(self, path: str) -> bool | None:
        """True where the last pattern that holds names ``path``, False where it takes back, None where none holds."""
        for wanted, rule in reversed(self.rules):
            if rule.fullmatch(path):
                return wanted
        return None
