"""All cheats by name, and which of them a task should be tried with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from woodshed.errors import UsageError
from woodshed.harness.cheats import node, reading, reports, runners, steering, world
from woodshed.harness.cheats.cheat import Cheat, Surface, holds, reached
from woodshed.model import Assurance, Task


def _by_name(parts: Iterable[Iterable[Cheat]]) -> Mapping[str, Cheat]:
    cheats = [cheat for part in parts for cheat in part]
    table = {cheat.name: cheat for cheat in cheats}
    assert len(table) == len(cheats), "two cheats of one name"
    return table


CHEATS: Mapping[str, Cheat] = _by_name(
    part.CHEATS for part in (steering, runners, reports, reading, world, node))


def named(name: str | None) -> Cheat:
    """The cheat called ``name``. Raises UsageError listing all there are."""
    if name is not None and name in CHEATS:
        return CHEATS[name]
    if name and (near := get_close_matches(name, CHEATS, n=1)):
        raise UsageError(f"unknown cheat '{name}'", remedy=f"Did you mean 'cheat:{near[0]}'?")
    message = f"unknown cheat '{name}'" if name else "cheat needs a name"
    raise UsageError(message, remedy=f"Write cheat:NAME, with NAME one of {', '.join(sorted(CHEATS))}.")


def fitting(task: Task, assurance: Assurance | None = None, *, slow: bool = True) -> list[str]:
    """Names of the cheats that ``task`` offers something to, and that ``assurance`` must keep from a reward.

    ``assurance`` is by default what a plain verification of the task reaches; the lower, the fewer. ``slow=False``
    leaves out those that cost more than a plain run of the tests: a verifier's whole bound, gigabytes of disk.
    """
    surface, level = Surface.of(task), assurance or reached(task)
    return [name for name, cheat in CHEATS.items()
            if cheat.fits(surface) and holds(level, cheat.stopped) and (slow or not cheat.slow)]
