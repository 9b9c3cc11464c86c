"""What attempts took of the machines, summed: a pure function over records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from woodshed.model import Used
from woodshed.model.used import total

_VERIFIER = frozenset({"verify", "grade"})


def used(executions: Iterable[Mapping[str, Used]]) -> dict[str, Used]:
    """By whose sandboxes they were, ``agent`` and ``verifier``, and ``all``; of what each execution took by stage.

    CPU time is unknown where any of it is.
    """
    parts = [part for one in executions for part in one.items()]
    agent = total(used for stage, used in parts if stage not in _VERIFIER)
    verifier = total(used for stage, used in parts if stage in _VERIFIER)
    return {"agent": agent, "verifier": verifier, "all": agent.plus(verifier)}
