"""How tool calls are written: natively, as text, or either."""

from __future__ import annotations

from woodshed.errors import UsageError
from woodshed.harness.dialects.native import Auto, Tools
from woodshed.harness.dialects.reading import Dialect, Reading
from woodshed.harness.dialects.text import Text

__all__ = ["Dialect", "Reading", "named"]


def named(name: str) -> Dialect:
    """The dialect called ``name``: auto, tools or text. Raises UsageError for another."""
    for dialect in (Auto(), Tools(), Text()):
        if dialect.name == name:
            return dialect
    raise UsageError(f"unknown dialect '{name}'", field="dialect", remedy="Known: auto, tools, text.")
