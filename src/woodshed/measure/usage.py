"""What attempts took of the machines, summed from their outcomes: a pure function over records."""

from __future__ import annotations

from collections.abc import Iterable

from woodshed.model import Outcome, Used
from woodshed.model.used import total

_VERIFIER = frozenset({"verify", "grade"})


def used(outcomes: Iterable[Outcome]) -> dict[str, Used]:
    """By whose sandboxes they were, ``agent`` and ``verifier``, and ``all``. CPU time is unknown where any of it is."""
    parts = [part for outcome in outcomes for part in outcome.used.items()]
    agent = total(used for stage, used in parts if stage not in _VERIFIER)
    verifier = total(used for stage, used in parts if stage in _VERIFIER)
    return {"agent": agent, "verifier": verifier, "all": agent.plus(verifier)}
