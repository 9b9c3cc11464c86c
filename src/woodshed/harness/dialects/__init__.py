"""How tool calls are written: natively, in a model family's own format, or as text."""

from __future__ import annotations

from woodshed.errors import UsageError
from woodshed.harness.dialects.choosing import family_of
from woodshed.harness.dialects.families import FAMILIES
from woodshed.harness.dialects.family import InFamily
from woodshed.harness.dialects.native import Auto, Tools
from woodshed.harness.dialects.raw import Raw, RawText
from woodshed.harness.dialects.reading import Dialect, Reading
from woodshed.harness.dialects.strict import Strict
from woodshed.harness.dialects.text import Text

__all__ = ["FAMILIES", "NAMES", "RAW", "Dialect", "Reading", "named"]

RAW: tuple[str, ...] = (*FAMILIES, *(f"text:{name}" for name in FAMILIES))
"""Those for endpoints of raw completions: whose format the conversation is written in must be said."""
NAMES: tuple[str, ...] = ("auto", "tools", "strict", "text", *RAW)


def named(name: str, model: str = "", *, raw: bool = False) -> Dialect:
    """The dialect called ``name``, one of NAMES, for the model of that name.

    ``raw``: for an endpoint of raw completions. Raises UsageError for a name that is none, or none for this endpoint.
    """
    if raw:
        return _raw(name)
    if name.startswith("text:") and name in NAMES:
        raise UsageError(f"'{name}' is for endpoints of raw completions", field="dialect",
                         remedy="Say 'text', or give the address of one.")
    if name == "auto":
        return Auto(family_of(model))
    if name in FAMILIES:
        return InFamily(FAMILIES[name])
    for dialect in (Tools(), Strict(family_of(model)), Text()):
        if dialect.name == name:
            return dialect
    raise UsageError(f"unknown dialect '{name}'", field="dialect", remedy=f"Known: {', '.join(NAMES)}.")


def _raw(name: str) -> Dialect:
    kind, _, family = name.rpartition(":")
    if name not in RAW:
        raise UsageError(f"'{name}' does not say how a conversation is written for raw completions", field="dialect",
                         remedy=f"Name the model's family, one of: {', '.join(FAMILIES)}; or text:FAMILY.")
    return RawText(FAMILIES[family]) if kind else Raw(FAMILIES[family])
