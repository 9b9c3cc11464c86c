"""The stages of one execution: each is bounded, timed, accounted for, and told as an event when it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from woodshed.errors import Cause, EnvironmentFault, HarnessFault, VerifierFault, WoodshedError, boundary
from woodshed.interfaces import BlobSink, Emit, Sandbox, SandboxEngine, Snapshot
from woodshed.model import ChangeSet, EnvironmentSpec, EventKind, SandboxPolicy, Used
from woodshed.model.used import larger

T = TypeVar("T")
GRACE_S = 10.0
"""So long what was cut off may take to clean up; what takes longer is left behind, and goes with its engine."""


class Overrun(Exception):
    """Something was cut off at its deadline."""


@runtime_checkable
class Accounted(Protocol):
    """What a sandbox that keeps accounts has besides :class:`woodshed.interfaces.Sandbox`."""

    def used(self) -> Used:
        """What it has used so far; all of it once it is closed. At no cost: nobody is asked."""


class Ledger:
    """A sandbox engine that knows what the sandboxes it made have used; all else is the engine's own.

    A sandbox that keeps no accounts is taken to stand until it is looked at last, and its CPU time is unknown.
    """

    def __init__(self, engine: SandboxEngine) -> None:
        self._engine = engine
        self._boxes: list[tuple[Callable[[], Used] | None, float, float]] = []
        """Its account, when it was asked for, and how old it was by then."""
        self._drawn = (0, 0.0, 0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @property
    def engine(self) -> SandboxEngine:
        """This, as what it stands for."""
        return cast(SandboxEngine, self)

    async def create(
        self, spec: EnvironmentSpec, policy: SandboxPolicy, *, restore: tuple[ChangeSet, BlobSink] | None = None
    ) -> Sandbox:
        """As :meth:`SandboxEngine.create`."""
        asked = time.monotonic()
        sandbox = await self._engine.create(spec, policy, restore=restore)
        self._add(sandbox, asked)
        return sandbox

    async def fork(
        self, snapshot: Snapshot, n: int = 1, *, policy: SandboxPolicy | None = None
    ) -> Sequence[Sandbox]:
        """As :meth:`SandboxEngine.fork`."""
        asked = time.monotonic()
        made = await self._engine.fork(snapshot, n, policy=policy)
        for sandbox in made:
            self._add(sandbox, asked)
        return made

    def _add(self, sandbox: Sandbox, asked: float) -> None:
        account = sandbox.used if isinstance(sandbox, Accounted) else None
        waited_s = 0.0  # in a reserve: whoever asks pays from then on
        if account is not None:
            waited_s = max(0.0, account().sandbox_s - (time.monotonic() - asked))
        self._boxes.append((account, asked, waited_s))

    def draw(self) -> Used:
        """What was used since this was last asked; peaks are those so far."""
        count, sandbox_s, cpu_s = len(self._boxes), 0.0, 0.0
        unknown, memory, disk = False, None, None
        for account, asked, waited_s in self._boxes:
            if account is None:
                sandbox_s, unknown = sandbox_s + time.monotonic() - asked, True
                continue
            used = account()
            sandbox_s += max(0.0, used.sandbox_s - waited_s)
            cpu_s, unknown = cpu_s + (used.cpu_s or 0.0), unknown or used.cpu_s is None
            memory, disk = larger(memory, used.memory_peak_bytes), larger(disk, used.disk_bytes)
        before, self._drawn = self._drawn, (count, sandbox_s, cpu_s)
        return Used.model_construct(
            sandboxes=count - before[0], sandbox_s=max(0.0, sandbox_s - before[1]),
            cpu_s=None if unknown else max(0.0, cpu_s - before[2]), memory_peak_bytes=memory, disk_bytes=disk)


class Stages:
    """Runs the stages of one execution. ``seconds`` and ``used`` are by stage; ``broke_at`` is where a fault struck."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.seconds: dict[str, float] = {}
        self.used: dict[str, Used] = {}
        self.broke_at: str | None = None

    async def run(
        self, name: str, work: Coroutine[Any, Any, T], *, owner: Cause, doing: str, within_s: float | None,
        ledger: Ledger | None = None,
    ) -> T:
        """What ``work`` returns. Raises what it raises, as a fault of ``owner``; and one at ``within_s`` seconds.

        ``cpu_s`` of the event is this process's own: of one attempt only where attempts run one at a time.
        """
        started, cpu = time.perf_counter(), time.process_time()
        try:
            with boundary(owner, doing, usage=True):
                try:
                    return await cut(work, within_s)
                except Overrun as overrun:
                    raise _fault(owner, f"{doing}: cut off after {within_s:g} s (deadline {name})") from overrun
        except WoodshedError:
            self.broke_at = self.broke_at or name
            raise
        finally:
            self._ended(name, time.perf_counter() - started, time.process_time() - cpu, ledger)

    def _ended(self, name: str, seconds: float, own_cpu_s: float, ledger: Ledger | None) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        data: dict[str, Any] = {"stage": name, "seconds": round(seconds, 6), "cpu_s": round(own_cpu_s, 6)}
        if ledger is not None:
            used = ledger.draw()
            self.used[name] = self.used[name].plus(used) if name in self.used else used
            data["used"] = _rounded(used)
        self._emit(EventKind.STAGE, data)


def _rounded(used: Used) -> dict[str, Any]:
    cpu_s = None if used.cpu_s is None else round(used.cpu_s, 6)
    return {"sandboxes": used.sandboxes, "sandbox_s": round(used.sandbox_s, 6), "cpu_s": cpu_s,
            "memory_peak_bytes": used.memory_peak_bytes, "disk_bytes": used.disk_bytes}


def _fault(owner: Cause, said: str) -> WoodshedError:
    """An overrun is worth another try, whoever it was that hung: the next one may be served better."""
    kinds = {Cause.ENVIRONMENT: EnvironmentFault, Cause.VERIFIER: VerifierFault}
    fault = kinds.get(owner, HarnessFault)(said)
    fault.retryable = True
    return fault


async def cut(work: Coroutine[Any, Any, T], within_s: float | None, *, grace_s: float = GRACE_S) -> T:
    """What ``work`` returns, if need be a little late: cancelled at ``within_s``, it may clean up for ``grace_s``.

    Then it is left to itself, whatever it does. Raises Overrun where it did not return, and what ``work`` raised
    before the deadline. Cancelled itself, it cancels ``work`` and waits for it as long.
    """
    if within_s is None:
        return await work
    loop = asyncio.get_running_loop()
    task, over = loop.create_task(work), loop.create_future()
    task.add_done_callback(lambda _: _settle(over))
    alarm = loop.call_later(within_s, _settle, over)
    try:
        await over
    except asyncio.CancelledError:
        await _ended(task, grace_s)
        raise
    finally:
        alarm.cancel()
    if task.done():
        return task.result()
    await _ended(task, grace_s)
    if task.done() and not task.cancelled() and task.exception() is None:
        return task.result()
    raise Overrun


def _settle(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


async def _ended(task: asyncio.Task[Any], grace_s: float) -> None:
    task.add_done_callback(_heard)
    task.cancel()
    await asyncio.wait({task}, timeout=grace_s)
    if not task.done():
        task.cancel()  # once more: it may hang in its cleaning up
        await asyncio.wait({task}, timeout=grace_s / 10)


def _heard(task: asyncio.Task[Any]) -> None:
    """Nobody asks for its exception any more."""
    if not task.cancelled():
        task.exception()
