"""Names become implementations here: entry points, and built-ins enter by the same door.

Groups (declared in ``pyproject.toml``; a third party's package adds to them in the same way):

``woodshed.engines``     ``factory(home: Path) -> SandboxEngine``
``woodshed.harnesses``   ``factory(argument: str | None) -> Harness``; ``replay:FILE`` passes ``FILE``
``woodshed.external``    ``ExternalAgent``: a program of others for ``external:NAME``; docs/external.md
``woodshed.verifiers``   ``factory() -> Verifier``
``woodshed.rules``       ``rule(evidence, options) -> float | None``: a reward rule of kind ``plugin``; docs/rewards.md
``woodshed.cheats``      ``fitting(task, assurance, *, slow) -> list[str]``: what follows a harness's name and colon
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from woodshed import settings
from woodshed.errors import UsageError
from woodshed.interfaces import Harness, SandboxEngine, Verifier
from woodshed.model import Assurance, Task
from woodshed.sandbox.pool import Pool

if TYPE_CHECKING:
    from woodshed.verify.rules import Plugin


def engine(name: str, home: Path) -> SandboxEngine:
    """The sandbox engine called ``name``, keeping its state below ``home``, with the reserve that settings ask for.

    Raises UsageError for an unknown one, or a reserve that is no number.
    """
    made = cast(SandboxEngine, _factory("woodshed.engines", "engine", name)(home))
    asked = settings.setting("warm_sandboxes")
    if not asked.isdecimal():
        raise UsageError(f"{asked!r} is no number of sandboxes", field="WOODSHED_WARM_SANDBOXES",
                         remedy="Say how many of each kind are to stand ready; 0 keeps none.")
    return Pool(made, warm=int(asked)) if int(asked) else made


def harness(name: str) -> Harness:
    """The harness called ``name``; text after a colon is its argument. Raises UsageError for an unknown one."""
    kind, _, argument = name.partition(":")
    return cast(Harness, _factory("woodshed.harnesses", "agent", kind)(argument or None))


def verifier(name: str = "fresh") -> Verifier:
    """The verifier called ``name``. Raises UsageError for an unknown one."""
    return cast(Verifier, _factory("woodshed.verifiers", "verifier", name)())


def rule(name: str) -> Plugin:
    """The reward rule called ``name``. Raises UsageError for an unknown one."""
    return cast("Plugin", _factory("woodshed.rules", "rule", name))


def cheats(task: Task, assurance: Assurance | None = None, *, slow: bool = True) -> list[str]:
    """Agents (``cheat:NAME``) that attack what ``task`` offers, and that ``assurance`` must keep from a reward.

    ``assurance`` is by default what a plain verification of the task reaches. ``slow=False`` leaves out those that keep
    a verifier waiting for its whole bound.
    """
    found = {name: _factory("woodshed.cheats", "suite of cheats", name) for name in names("cheats")}
    return [f"{suite}:{name}" for suite, fitting in found.items() for name in fitting(task, assurance, slow=slow)]


def names(group: str) -> list[str]:
    """What answers to ``group`` (engines, harnesses, verifiers), sorted."""
    return sorted(_found(f"woodshed.{group}"))


@cache
def _found(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def _factory(group: str, noun: str, name: str) -> Any:
    found = _found(group)
    if name not in found:
        near = get_close_matches(name, found, n=1)
        known = ", ".join(sorted(found)) or "none; is woodshed installed (pip install -e .)?"
        remedy = f"Did you mean '{near[0]}'?" if near else f"Known: {known}."
        raise UsageError(f"unknown {noun} '{name}'", remedy=remedy)
    try:
        return found[name].load()
    except ImportError as error:
        raise UsageError(f"{noun} '{name}' cannot be loaded: {error}", remedy="Install what it needs.") from error
