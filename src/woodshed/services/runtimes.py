"""Runtimes: one for each run that a worker has attempts of, opened on first need and closed when nothing needs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

from woodshed.errors import Unreadable, UsageError, WoodshedError
from woodshed.model import Durability, Run
from woodshed.model.event import now
from woodshed.services.ears import Ears
from woodshed.services.home import Home
from woodshed.services.runs import unchanged
from woodshed.services.runtime import Runtime
from woodshed.store.queue import SubmissionState
from woodshed.store.rollouts import Request

IDLE_S = 10.0
"""So long a runtime is kept that no attempt uses: its sandboxes and models may be wanted again at once."""

_OF_MODELS = frozenset({"--model", "--require-capture"})
"""What a command line says of models, whose place in a request is its endpoint."""


class Unopened(Exception):
    """This machine cannot execute attempts of the run, for the reason in the message."""


@dataclass(slots=True)
class Live:
    """A run with its runtime. ``since`` is when its circuit breaker began to count."""

    run: Run
    runtime: Runtime
    since: datetime = field(default_factory=now)
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)


class Runtimes:
    """Opens and closes them. The tasks of a run are loaded from its folders, and must be as they were."""

    def __init__(self, home: Home, *, parallel: int, ears: Ears) -> None:
        self._home, self._parallel, self._ears = home, parallel, ears
        self._slots = asyncio.Semaphore(parallel)
        self._open: dict[str, asyncio.Task[Live]] = {}
        self._leaving = False

    @asynccontextmanager
    async def of(self, run_id: str) -> AsyncIterator[Live]:
        """The run's, in use until this is left. Raises Unopened, and StoreFault."""
        if run_id not in self._open:
            self._open[run_id] = asyncio.create_task(self._opened(run_id))
        opening = self._open[run_id]
        try:
            live = await asyncio.shield(opening)  # others wait for it, too
        except Exception:
            if self._open.get(run_id) is opening:
                del self._open[run_id]
            raise
        live.runtime.leaving = self._leaving
        live.users += 1
        try:
            yield live
        finally:
            live.users -= 1
            live.used_at = time.monotonic()

    def leave(self) -> None:
        """Attempts of fine durability are left at their next turn, with a checkpoint for others to go on from."""
        self._leaving = True
        for opening in self._open.values():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().runtime.leaving = True

    async def _opened(self, run_id: str) -> Live:
        try:
            run = await asyncio.to_thread(self._home.store.run, run_id)
        except Unreadable as error:
            raise Unopened(str(error)) from error
        try:
            tasks = await asyncio.to_thread(unchanged, run)
            runtime = Runtime(self._home, run, tasks, slots=self._slots, parallel=self._parallel,
                              ears=self._ears)
            await runtime.__aenter__()
        except UsageError as error:
            request = await asyncio.to_thread(self._home.store.rollouts.request, run_id)
            raise Unopened(str(error if request is None else _as_asked(error, request))) from error
        except WoodshedError as error:
            raise Unopened(str(error)) from error
        except Exception as error:
            raise Unopened(f"{type(error).__name__}: {error}") from error
        await runtime.ready()
        return Live(run, runtime)

    async def sweep(self) -> None:
        """Close what has been idle for long, or belongs to a run that hands out nothing.

        Attempts of fine durability are left at their next turn where their run was paused.
        """
        for run_id, opening in list(self._open.items()):
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                live = opening.result()
                if live.users and any(agent.durability is Durability.FINE for agent in live.run.spec.agents):
                    live.runtime.leaving = self._leaving or await asyncio.to_thread(self._rests, run_id)
                if live.users == 0 and (_idle(live) or await asyncio.to_thread(self._rests, run_id)) \
                        and live.users == 0:
                    del self._open[run_id]
                    await live.runtime.__aexit__(None, None, None)

    def _rests(self, run_id: str) -> bool:
        found = self._home.store.queue.submission(run_id)
        return found is None or found.state is not SubmissionState.OPEN

    async def close(self) -> None:
        """Close all of them; nothing uses them any more."""
        while self._open:
            _, opening = self._open.popitem()
            [live] = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(live, Live):
                await live.runtime.__aexit__(None, None, None)


def _as_asked(error: UsageError, request: Request) -> UsageError:
    """What is wrong with the model of a request, in the words of whoever asks a service: no command line was theirs."""
    if error.field not in _OF_MODELS:
        return error
    remedy = f"{error.remedy or ''} Then open the request again: POST /v1/rollouts/{request.run}/open".strip()
    return UsageError(error.message, field=f"endpoint {request.endpoint}", remedy=remedy)


def _idle(live: Live) -> bool:
    return time.monotonic() - live.used_at > IDLE_S
