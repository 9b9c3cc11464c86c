"""What of an output may differ each time though nothing else does: times, process ids, names, addresses. Pure.

The table is what docs/replay.md declares; two outputs that differ in nothing else are the same.
"""

from __future__ import annotations

import re

VOLATILE: tuple[tuple[str, str], ...] = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|[+-]\d\d:?\d\d|UTC))?", "<time>"),
    (r"\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? +)?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d{1,2} +"
     r"(?:\d\d:\d\d(?::\d\d)?|\d{4})(?: +[A-Z]{3,4})?(?: +\d{4})?", "<time>"),
    (r"\b\d{4}-\d\d-\d\d\b", "<date>"),
    (r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b", "<time>"),
    (r"\b\d+m\d+\.\d+s\b", "<duration>"),
    (r"\b\d+(?:\.\d+)?(?:e-\d+)? ?(?:s|ms|us|µs|ns|secs?|seconds?|minutes?)\b", "<duration>"),
    (r"\b1[6-9]\d{8}(?:\.\d+)?\b", "<epoch>"),
    (r"\b(pid|PID|process|Process)([ =:#]+)\d+", r"\1\2<pid>"),
    (r"(?m)^\[(\d+)\] \d+$", r"[\1] <pid>"),
    (r"(?m)^(\S+ +)\d+( +\d+\.\d +\d+\.\d )", r"\1<pid>\2"),
    (r"(/tmp/|/var/tmp/)[\w.+-]+", r"\1<name>"),
    (r"\btmp[a-z0-9_]{6,}\b", "<name>"),
    (r"\b0x[0-9a-f]{6,16}\b", "<address>"),
)
"""Patterns, in this order, and what stands in their place."""
_READY = tuple((re.compile(pattern), stands) for pattern, stands in VOLATILE)


def settled(text: str) -> str:
    """``text`` without what is volatile."""
    for pattern, stands in _READY:
        text = pattern.sub(stands, text)
    return text
