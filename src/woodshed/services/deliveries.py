"""Deliveries: whole groups of all requests, handed to consumers in order of completion by lease and acknowledgement.

A consumer works on what it got and acknowledges it. One that dies before loses nothing, as the lease runs out and the
group is handed out anew; what was acknowledged never comes again. Each delivery has a name of its own, so that who
comes too late settles nothing of another's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from woodshed.errors import Missing, UsageError
from woodshed.model import Attempt, Run
from woodshed.model.delivery import Delivered, Deliveries, Member, Settled
from woodshed.model.rollout import WORST, CallRecord, CaptureLevel, Rollout
from woodshed.services.gathering import Gatherer
from woodshed.services.home import Home
from woodshed.services.lent import lent
from woodshed.services.rollouts import DEFAULT, behind, policies
from woodshed.services.settling import whole
from woodshed.store.groups import Group
from woodshed.store.rollouts import Request
from woodshed.trainers.chat import Chat
from woodshed.trainers.rollouts import baseline
from woodshed.trainers.secrets import Masker

LEASE_S, LONGEST_LEASE_S = 600.0, 86_400.0
LONGEST_WAIT_S = 300.0
_LOOKS_S = (0.05, 0.5)  # how soon a waiting consumer looks again: at first, and in the end


async def _stays() -> bool:
    return False


async def next_groups(
    home: Home, consumer: str, *, most: int = 1, lease_s: float = LEASE_S, wait_s: float = 0.0,
    requests: Sequence[str] | None = None, again: bool = False, gone: Callable[[], Awaitable[bool]] = _stays,
    project: str = DEFAULT,
) -> Deliveries:  # fmt: skip
    """At most ``most`` complete groups, of these requests or of all, leased to ``consumer``.

    Waits for the first one for ``wait_s`` at the most. ``again``: those that this consumer was leased and did not
    settle come at once, too, for one that died and is back under its name. Who is ``gone`` when there is something is
    given nothing. Raises Missing for a request that there is not, StoreFault.
    """
    until, look_s = time.monotonic() + min(wait_s, LONGEST_WAIT_S), _LOOKS_S[0]
    while True:
        over = await asyncio.to_thread(_over, home, requests, project)
        mine = consumer if again else None
        ready = await asyncio.to_thread(home.store.rollouts.any_ready, project, requests, mine)
        if ready and not await gone():
            take = partial(home.store.rollouts.take, project, consumer, most, lease_s=lease_s, runs_=requests,
                           again=again)
            groups = await _taken(home, take, lease_s, project)
            if groups:
                return Deliveries(groups=groups, over=False)
        if over or time.monotonic() >= until or await gone():
            return Deliveries(groups=(), over=over)
        await asyncio.sleep(min(look_s, max(0.0, until - time.monotonic())))
        look_s = min(2 * look_s, _LOOKS_S[1])


async def _taken(
    home: Home, take: Callable[[], list[tuple[Group, Request]]], lease_s: float, project: str
) -> tuple[Delivered, ...]:
    """Groups that are leased now; free again at once where they cannot be told, or nobody listens any more."""
    taken = await whole(take)
    try:
        return await asyncio.to_thread(_told, home, taken, lease_s, project)
    except BaseException:
        await whole(_untake, home, [group for group, _ in taken])
        raise


def _untake(home: Home, groups: Sequence[Group]) -> None:
    for group in groups:
        assert group.place is not None
        home.store.groups.give_back(group.run, group.place, group.delivery)


def _over(home: Home, requests: Sequence[str] | None, project: str) -> bool:
    """Whether nothing of these requests will ever be handed out any more; of all, more may always come."""
    if requests is None:
        return False
    home.store.rollouts.close_over()
    found = [home.store.rollouts.request(run) for run in requests]
    if (missing := [run for run, request in zip(requests, found, strict=True)
                    if request is None or request.project != project]):
        raise Missing(f"no request {missing[0]!r}", field="request", remedy="GET /v1/rollouts lists them.")
    return all(request is not None and request.over_at is not None for request in found)


def _told(
    home: Home, taken: Sequence[tuple[Group, Request]], lease_s: float, project: str
) -> tuple[Delivered, ...]:
    current = policies(home, project)
    runs = {group.run: home.store.run(group.run) for group, _ in taken}
    found = []
    for group, request in taken:
        attempts = home.store.attempts(group.run, group=(group.task, group.agent))
        members = rolled(home, runs[group.run], attempts)
        base = baseline([rollout for rollout, _, _ in members])
        assert group.place is not None
        found.append(Delivered(
            delivery=f"{group.run}.{group.place}.{group.delivery}", group=f"{group.run}.{group.place}",
            request=group.run, task=group.task, agent=group.agent, place=group.place, deliveries=group.delivery,
            lease_s=lease_s, policy_version=request.version, behind=behind(request, current), size=len(members),
            valid=base.valid, baseline=base.mean, deviation=base.deviation,
            capture_level=_worst([rollout for rollout, _, _ in members]),
            rollouts=tuple(member(rollout, stage, prompt, base.advantage(rollout.reward))
                           for rollout, stage, prompt in members)))
    return tuple(found)


def member(rollout: Rollout, stage: str | None, prompt: tuple[Chat, ...], advantage: float | None = None) -> Member:
    """The rollout as a member of its group; its rows, which may be long, are not looked through again."""
    fields = {name: getattr(rollout, name) for name in Rollout.model_fields}
    return Member.model_construct(**fields, advantage=advantage, stage=stage, prompt=prompt)


def rolled(home: Home, run: Run, attempts: Sequence[Attempt]) -> list[tuple[Rollout, str | None, tuple[Chat, ...]]]:
    """Finished attempts as rollouts, where each broke, and the conversation it began with, its secrets masked."""
    gatherer = Gatherer(home, Masker(lent([run])[0]))
    found = []
    for attempt in attempts:
        rollout, prompt = gatherer.rollout(attempt)
        broke = attempt.outcome.broke if attempt.outcome is not None else None
        found.append((rollout, broke.stage if broke is not None else None, tuple(gatherer.masker.masked(prompt))))
    return found


def called(home: Home, run: Run, attempt: Attempt) -> list[CallRecord]:
    """The model calls of a finished attempt, their secrets masked; where there were any, without ids."""
    gatherer = Gatherer(home, Masker(lent([run])[0]))
    return [CallRecord.model_validate(gatherer.masked(one.to_json())) for one in gatherer.records(attempt)[0]]


def _worst(rollouts: Sequence[Rollout]) -> CaptureLevel:
    """That of the worst of them that can be learnt from; of all, where none can."""
    levels = {one.capture_level for one in rollouts if one.trainable} or {one.capture_level for one in rollouts}
    return next(level for level in reversed(WORST) if level in levels)


# -- settling ----------------------------------------------------------------------------------------------------------


def ack(home: Home, deliveries: Sequence[str], *, project: str = DEFAULT) -> Settled:
    """These groups are consumed, for good, all in one transaction. Idempotent. Raises UsageError, Missing."""
    return _settled(deliveries, home.store.groups.ack_all(_named(home, deliveries, project)))


def give_back(home: Home, deliveries: Sequence[str], *, project: str = DEFAULT) -> Settled:
    """Whoever asks next gets these groups. Raises UsageError, Missing."""
    return _settled(deliveries, [home.store.groups.give_back(*one) for one in _named(home, deliveries, project)])


def renew(home: Home, deliveries: Sequence[str], lease_s: float, *, project: str = DEFAULT) -> Settled:
    """The leases of these groups run for ``lease_s`` from now on. Raises UsageError, Missing."""
    named, lease_s = _named(home, deliveries, project), min(lease_s, LONGEST_LEASE_S)
    return _settled(deliveries, [home.store.groups.renew(*one, lease_s=lease_s) for one in named])


def _settled(deliveries: Sequence[str], done: Sequence[bool]) -> Settled:
    pairs = list(dict(zip(deliveries, done, strict=True)).items())
    return Settled(done=tuple(one for one, held in pairs if held), lost=tuple(one for one, held in pairs if not held))


def _named(home: Home, deliveries: Sequence[str], project: str) -> list[tuple[str, int, int]]:
    parts = [_parts(one) for one in deliveries]
    for run in dict.fromkeys(run for run, _, _ in parts):
        request = home.store.rollouts.request(run)
        if request is None or request.project != project:
            raise Missing(f"no request {run!r}", field="deliveries", remedy="Say each as it was delivered.")
    return parts


def _parts(delivery: str) -> tuple[str, int, int]:
    """Run, place and number of a delivery. Raises UsageError for what is none."""
    run, _, numbers = delivery.partition(".")
    place, _, number = numbers.partition(".")
    if not run or not all(one.isascii() and one.isdigit() and len(one) < 10 for one in (place, number)):
        raise UsageError(f"{delivery!r} is no delivery", field="deliveries", remedy="Say it as it was delivered.")
    return run, int(place), int(number)
