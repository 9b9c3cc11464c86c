"""Begins or resumes a run of real subprocesses, and tells each step so that it can be killed at any of them.

``_worker.py HOME [VERSION]``, on the database of WOODSHED_DATABASE_URL; as if this were another version of Woodshed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from woodshed.engine import Durable, Lease, claim, durable
from woodshed.model import Agent, Assurance, Attempt, EventKind, Outcome, Run, RunSpec, RunState, StopReason, Valid
from woodshed.model.event import now
from woodshed.store import EventLog, Store, attempt_id, new_run_id

ATTEMPTS = 30


def ours(store: Store, lease: Lease, home: Path) -> Run:
    """The newest run, taken over; or a new one when there is none."""
    if store.newest_run() is not None:
        return claim(store, "last", lease, home)
    spec = RunSpec(tasks=("/t",), agents=(Agent(name="nop", harness="nop"),), attempts=ATTEMPTS, concurrency=3)
    run = Run(id=new_run_id(), spec=spec, executor=lease.executor, created_at=now())
    store.create_run(run, [
        Attempt(id=attempt_id(run.id, n), run=run.id, task="t", agent="nop", index=n - 1, seed=n)
        for n in range(1, ATTEMPTS + 1)
    ])
    return run


async def main(home: Path) -> None:
    """Work until every attempt has its result."""
    url = os.environ.get("WOODSHED_DATABASE_URL")
    with Lease(home) as lease, Store(url, home) as store:
        run = ours(store, lease, home)

        async def execute(attempt: str) -> None:
            execution = store.begin_execution(attempt, lease.executor)
            if execution is None:
                return
            print("begun", attempt, execution, flush=True)
            log = EventLog(store, attempt, execution)
            log.emit(EventKind.TOOL_CALL, {"call": "c", "name": "sh"})
            log.flush()
            proof = home / "out" / f"{attempt}.{execution}"
            child = await asyncio.create_subprocess_exec("sh", "-c", f"sleep 0.03; echo done > {proof}")
            code = await child.wait()
            log.emit(EventKind.TOOL_RESULT, {"call": "c", "exit_code": code})
            verdict = Valid(rewards={}, total=1.0, assurance=Assurance.CANARY, detail=str(execution))
            counted = log.finish(Outcome(verdict=verdict, stop=StopReason.FINISHED))
            print("counted" if counted else "fenced", attempt, execution, flush=True)

        working = Durable(home, lease.executor, execute, concurrency=run.spec.concurrency, url=url)
        await working.start()
        try:
            await working.submit(run.id, [a.id for a in store.attempts(run.id) if a.outcome is None])
            assert await working.wait() == {}
        finally:
            await working.close()
        store.set_run_state(run.id, RunState.FINISHED)


if __name__ == "__main__":
    durable.VERSION = sys.argv[2] if len(sys.argv) > 2 else durable.VERSION
    asyncio.run(main(Path(sys.argv[1])))
