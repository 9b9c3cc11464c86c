"""How tool calls are written: natively, in a model family's own format, or as text."""

from __future__ import annotations

from woodshed.errors import UsageError
from woodshed.harness.dialects.choosing import family_of
from woodshed.harness.dialects.families import FAMILIES
from woodshed.harness.dialects.family import InFamily
from woodshed.harness.dialects.native import Auto, Tools
from woodshed.harness.dialects.reading import Dialect, Reading
from woodshed.harness.dialects.strict import Strict
from woodshed.harness.dialects.text import Text

__all__ = ["FAMILIES", "NAMES", "Dialect", "Reading", "named"]

NAMES: tuple[str, ...] = ("auto", "tools", "strict", "text", *FAMILIES)


def named(name: str, model: str = "") -> Dialect:
    """The dialect called ``name``, one of NAMES, for the model of that name. Raises UsageError for another."""
    if name == "auto":
        return Auto(family_of(model))
    if name in FAMILIES:
        return InFamily(FAMILIES[name])
    for dialect in (Tools(), Strict(family_of(model)), Text()):
        if dialect.name == name:
            return dialect
    raise UsageError(f"unknown dialect '{name}'", field="dialect", remedy=f"Known: {', '.join(NAMES)}.")
