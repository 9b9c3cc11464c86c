"""Spans of time as people write them: 90, 90s, 10m, 1.5h, 2d."""

from __future__ import annotations

import re

from woodshed.errors import UsageError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FORM = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhd]?)", re.ASCII)


def seconds(text: str, field: str) -> float:
    """The seconds that ``text`` says. Raises UsageError naming ``field``, for zero too."""
    found = _FORM.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise UsageError(f"{text!r} is no span of time", field=field, remedy="Say seconds, or 90s, 10m, 1.5h, 2d.")
    return float(found[1]) * _UNITS[found[2]]


def spoken(value: float) -> str:
    """``value`` seconds for people: 3.2 s, 4 min 10 s, 2 h 05 min, 1 d 3 h."""
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
