"""The families' chat formats: how a whole conversation is written as text, for endpoints of raw completions."""

from __future__ import annotations

from collections.abc import Mapping

from woodshed.harness.dialects.chats import formats, special
from woodshed.harness.dialects.chats.turns import Turns

__all__ = ["CHATS"]

CHATS: Mapping[str, Turns] = {**formats.ALL, **special.ALL}
"""By the family's name; every family has one."""
