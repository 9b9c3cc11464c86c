"""Families: hundreds of tasks from templates, written as ordinary task folders; training and held-out ones apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from woodshed.errors import UsageError
from woodshed.tasks.collection import Progress, quiet, write_collection
from woodshed.tasks.families import FAMILIES, Split, draft, instances, named


def generate(
    family: str, split: str, out: Path, *, count: int, seed: int = 0, force: bool = False, progress: Progress = quiet
) -> list[Path]:
    """The folders of ``count`` tasks of a split below ``out``, written whole or not at all; the same for the same seed.

    Raises UsageError for a family or split that is not there, for more tasks than there are, and for a folder in the
    way.
    """
    if split not in set(Split):
        raise UsageError(f"there is no split '{split}'", field="--split", remedy=f"Known: {', '.join(Split)}.")
    found = instances(named(family), Split(split), count=count, seed=seed)
    return write_collection(out, ((one.name, draft(one)) for one in found), total=count, force=force, progress=progress)


def listing() -> Sequence[dict[str, Any]]:
    """A row each family: its name, what it is, and the templates of its splits."""
    return [{"family": one.name, "description": one.description, "templates": list(one.templates),
             "unseen": list(one.unseen)} for one in FAMILIES.values()]
