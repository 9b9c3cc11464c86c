"""Fills the disk below a run, in a process of its own, then makes room and finishes the run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from woodshed.engine import Durable, Lease
from woodshed.errors import StoreFault
from woodshed.model import Agent, Assurance, Attempt, AttemptState, EventKind, Outcome, Run, RunSpec, StopReason, Valid
from woodshed.model.event import now
from woodshed.store import EventLog, Store, attempt_id

ATTEMPTS = 40
OUTCOME = Outcome(verdict=Valid(rewards={}, total=1.0, assurance=Assurance.CANARY), stop=StopReason.FINISHED)


async def main(home: Path) -> None:
    """Two passes over the same run: the first meets the full disk, the second has room."""
    ballast = home / "ballast"
    with Lease(home) as lease, Store(None, home) as store:
        spec = RunSpec(tasks=("/t",), agents=(Agent(name="nop", harness="nop"),))
        store.create_run(
            Run(id="r-1", spec=spec, executor=lease.executor, created_at=now()),
            [Attempt(id=attempt_id("r-1", n), run="r-1", task="t", agent="nop", index=n, seed=n)
             for n in range(1, ATTEMPTS + 1)],
        )

        async def execute(attempt: str) -> None:
            execution = store.begin_execution(attempt, lease.executor)
            if execution is not None:
                log = EventLog(store, attempt, execution)
                log.emit(EventKind.NOTE, {"text": "x" * 2000})
                assert log.finish(OUTCOME)

        async def work(fill: bool) -> dict[str, Exception]:
            durable = Durable(home, lease.executor, execute, concurrency=2)
            await durable.start()
            if fill:
                fill_disk(ballast)
            await durable.submit("r-1", [a.id for a in store.attempts("r-1") if a.outcome is None])
            faults = await durable.wait()
            ballast.unlink(missing_ok=True)
            await durable.close()
            return faults

        faults = await work(fill=True)
        assert faults, "the disk was not full"
        for fault in faults.values():
            assert isinstance(fault, StoreFault), repr(fault)
            assert "the disk is full" in str(fault), fault
        assert await work(fill=False) == {}
        assert len(store.attempts("r-1", AttemptState.DONE)) == ATTEMPTS
    print("kept everything")


def fill_disk(ballast: Path) -> None:
    """Leave no free block."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
