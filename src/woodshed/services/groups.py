"""Groups: a run's attempts of a task by an agent, listed as they stand, and handed to consumers whole when complete.

A consumer asks for the next ones, works on them, and acknowledges each. One that dies in between loses nothing: its
lease runs out, and the group goes to whoever asks next. What was acknowledged is never handed out again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from woodshed.errors import UsageError
from woodshed.model import Attempt, AttemptState, Run, RunState, Valid
from woodshed.services import naming, selection
from woodshed.services.home import Home
from woodshed.store.groups import Group

LEASE_S = 600.0
_LOOKS_S = (0.05, 1.0)  # how soon a waiting consumer looks again: at first, and in the end


@dataclass(frozen=True, slots=True)
class Gathered:
    """A group and its attempts, by their index."""

    group: Group
    attempts: tuple[Attempt, ...]

    @property
    def rewards(self) -> list[float | None]:
        """The total of each attempt; None where there is none: it is not done, not valid, or no rule gave one."""
        verdicts = [attempt.outcome.verdict if attempt.outcome else None for attempt in self.attempts]
        return [verdict.total if isinstance(verdict, Valid) else None for verdict in verdicts]

    def told(self) -> dict[str, Any]:
        """The group as a row: who, how far, how it went, and who has it."""
        group = self.group
        done = [one for one in self.attempts if one.state is AttemptState.DONE]
        return {
            "run": group.run, "task": group.task, "agent": group.agent, "state": group.state.value,
            "place": group.place, "done": len(done), "total": group.total,
            "valid": sum(one.outcome is not None and isinstance(one.outcome.verdict, Valid) for one in done),
            "rewards": self.rewards, "attempts": [one.id for one in self.attempts],
            "completed_at": group.completed_at.isoformat() if group.completed_at else None,
            "consumer": group.consumer, "delivery": group.delivery,
        }


@dataclass(frozen=True, slots=True)
class Next:
    """What a consumer got. ``over``: it need not ask again, nothing of the run will ever be handed out any more."""

    groups: tuple[Gathered, ...]
    over: bool


def listing(home: Home, name: str) -> list[Gathered]:
    """Every group of a run as it stands: complete ones in order of completion, then the partial ones.

    ``last`` names the newest run. Raises UsageError where there is none.
    """
    run = naming.run(home, name)
    return _gathered(home.store.groups.of(run.id), home.store.attempts(run.id))


def warned(home: Home, name: str) -> Mapping[str, Any]:
    """``{"selection": [...]}`` of a run whose faults followed the task or the length of attempts: see its summary.

    Nothing where too little broke to tell. Raises UsageError where there is no run.
    """
    run = naming.run(home, name)
    return selection.told(selection.selected(home, run, home.store.attempts(run.id)))


async def next_group(
    home: Home, name: str, consumer: str, *, most: int = 1, lease_s: float = LEASE_S, wait_s: float = 30.0
) -> Next:
    """At most ``most`` complete groups of a run, in order of completion, leased to ``consumer`` for ``lease_s``.

    Waits for the first one for at most ``wait_s`` (a long poll); none then means: ask again, unless it is ``over``.
    Raises UsageError for a run that there is not, or figures that are none.
    """
    if most < 1 or lease_s <= 0 or not consumer:
        raise UsageError("a consumer has a name, takes one group or more, and keeps them for a while", field="consumer")
    run = naming.run(home, name)
    until, look_s = time.monotonic() + wait_s, _LOOKS_S[0]
    while True:
        found, over = await asyncio.to_thread(_take, home, run.id, consumer, most, lease_s)
        if found or over or time.monotonic() >= until:
            return Next(tuple(found), over)
        await asyncio.sleep(min(look_s, max(0.0, until - time.monotonic())))
        look_s = min(2 * look_s, _LOOKS_S[1])


def ack(home: Home, group: Group) -> bool:
    """The group is consumed, for good. Idempotent; False where its lease had run out and another has taken it since."""
    assert group.place is not None
    return home.store.groups.ack(group.run, group.place, group.delivery)


def give_back(home: Home, group: Group) -> bool:
    """Whoever asks next gets the group. False where it is no longer this delivery's, or acknowledged."""
    assert group.place is not None
    return home.store.groups.give_back(group.run, group.place, group.delivery)


def renew(home: Home, group: Group, lease_s: float = LEASE_S) -> bool:
    """The lease of a group in work runs for ``lease_s`` from now. False as of :func:`give_back`."""
    assert group.place is not None
    return home.store.groups.renew(group.run, group.place, group.delivery, lease_s=lease_s)


def complete(home: Home, run: Run) -> bool:
    """Whether no group of the run will become complete any more: all are, or it is over."""
    partial, _ = home.store.groups.left(run.id)
    return not partial or run.state in (RunState.CANCELLED, RunState.FINISHED)


def _take(home: Home, run_id: str, consumer: str, most: int, lease_s: float) -> tuple[list[Gathered], bool]:
    ended = complete(home, home.store.run(run_id))  # before the take: what completes in between is taken
    taken = home.store.groups.take(run_id, consumer, most, lease_s=lease_s)
    found = [Gathered(one, tuple(home.store.attempts(run_id, group=(one.task, one.agent)))) for one in taken]
    return found, not found and ended and not home.store.groups.left(run_id)[1]


def _gathered(groups: Sequence[Group], attempts: Sequence[Attempt]) -> list[Gathered]:
    found: dict[tuple[str, str], list[Attempt]] = {}
    for attempt in attempts:
        found.setdefault((attempt.task, attempt.agent), []).append(attempt)
    return [Gathered(group, tuple(found[group.task, group.agent])) for group in groups]
