"""Following a request: each attempt as it changes, each rollout when it is done, the request when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from woodshed.model import RunState
from woodshed.services import rollouts
from woodshed.services.deliveries import called, member, rolled
from woodshed.services.home import Home

_LOOKS_S = (0.1, 1.0)  # how soon it is looked again: after a change, and where nothing changes


async def follow(
    home: Home, run_id: str, *, records: bool = False, project: str = rollouts.DEFAULT
) -> AsyncGenerator[tuple[str, Any], None]:
    """``("attempt", AttemptTold)`` of every attempt, and again when it changes; where ``records`` are wanted

    ``("call", CallRecord)`` of every model call of each that is done, and its ``("rollout", Member)``; then
    ``("end", RequestWhole)``, when the request is over. As JSON values.
    """
    seen: dict[str, tuple[str, int]] = {}
    look_s = _LOOKS_S[0]
    while True:
        ended = await asyncio.to_thread(_ended, home, run_id)  # before the look: what changes in between is seen
        told = await asyncio.to_thread(_changed, home, run_id, seen, records)
        for one in told:
            yield one
        if ended:
            yield "end", (await asyncio.to_thread(rollouts.told, home, run_id, project=project)).to_json()
            return
        look_s = _LOOKS_S[0] if told else min(2 * look_s, _LOOKS_S[1])
        await asyncio.sleep(look_s)


def _ended(home: Home, run_id: str) -> bool:
    return home.store.run(run_id).state in (RunState.FINISHED, RunState.CANCELLED)


def _changed(home: Home, run_id: str, seen: dict[str, tuple[str, int]], records: bool) -> list[tuple[str, Any]]:
    """What is news of the attempts, which ``seen`` remembers."""
    stands = {attempt: (state, executions) for attempt, state, executions in home.store.rollouts.standing(run_id)}
    news = [home.store.attempt(attempt) for attempt, now in stands.items() if seen.get(attempt) != now]
    seen.update(stands)
    found: list[tuple[str, Any]] = []
    run = home.store.run(run_id) if news else None
    for told, attempt in zip(rollouts.attempts_told(home, news), news, strict=True):
        found.append(("attempt", told.to_json()))
        if records and run is not None and attempt.outcome is not None:
            found += [("call", one.to_json()) for one in called(home, run, attempt)]
            [(rollout, stage, prompt)] = rolled(home, run, [attempt])
            found.append(("rollout", member(rollout, stage, prompt).to_json()))
    return found
