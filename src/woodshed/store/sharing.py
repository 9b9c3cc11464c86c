"""Who gets the next free slots: by priority, then evenly between projects, then by age. Pure arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """The attempts of one run that load one endpoint: ``ready`` may begin now, ``running`` are at work."""

    run: str
    project: str
    priority: int
    created_at: str
    slots: int | None
    endpoint: str
    ready: int
    running: int

    @property
    def scopes(self) -> tuple[str, str, str]:
        """What bounds may stand on."""
        return f"run:{self.run}", f"project:{self.project}", f"endpoint:{self.endpoint}"


def share_out(groups: Iterable[Waiting], wanted: int, room: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """How many of each (run, endpoint) begin, at most ``wanted`` in all. ``room`` bounds scopes; absent: no bound.

    A higher priority goes first whatever else. Among equals the project with the fewest attempts at work is next
    (max-min fairness, Bertsekas and Gallager 1992, section 6.5.2), in it the oldest run.
    """
    left = {(group.run, group.endpoint): group.ready for group in groups}
    waiting = {(group.run, group.endpoint): group for group in groups}
    space = dict(room)
    at_work: Counter[str] = Counter()
    for group in waiting.values():
        at_work[group.project] += group.running
    given: Counter[tuple[str, str]] = Counter()
    for _ in range(wanted):
        free = [key for key, group in waiting.items()
                if left[key] > 0 and all(space.get(scope, 1) > 0 for scope in group.scopes)]
        if not free:
            break
        key = min(free, key=lambda key: _order(waiting[key], at_work))
        group = waiting[key]
        left[key] -= 1
        given[key] += 1
        at_work[group.project] += 1
        for scope in group.scopes:
            if scope in space:
                space[scope] -= 1
    return dict(given)


def _order(group: Waiting, at_work: Mapping[str, int]) -> tuple[int, int, str, str, str]:
    return -group.priority, at_work[group.project], group.created_at, group.run, group.endpoint
