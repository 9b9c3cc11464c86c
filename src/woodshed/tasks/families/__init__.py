"""Families of tasks that are made, not collected: hundreds of them, each with its own start, reference and checks."""

from __future__ import annotations

from collections.abc import Mapping

from woodshed.errors import UsageError
from woodshed.tasks.families.family import Exercise, Family, Instance, Split, draft, instance, instances
from woodshed.tasks.families.first_commands import FIRST_COMMANDS

FAMILIES: Mapping[str, Family] = {family.name: family for family in (FIRST_COMMANDS,)}


def named(name: str) -> Family:
    """The family of this name. Raises UsageError for another."""
    if name not in FAMILIES:
        raise UsageError(f"there is no family '{name}'", field="FAMILY", remedy=f"Known: {', '.join(FAMILIES)}.")
    return FAMILIES[name]


__all__ = ["FAMILIES", "Exercise", "Family", "Instance", "Split", "draft", "instance", "instances", "named"]
