"""Fills the disk below a store, in a process of its own, and checks what remains. Prints what it found."""

from __future__ import annotations

from pathlib import Path

from woodshed.errors import StoreFault
from woodshed.model import Agent, Assurance, Attempt, AttemptState, EventKind, Outcome, Run, RunSpec, StopReason, Valid
from woodshed.model.event import now
from woodshed.store import Blobs, EventLog, Store, attempt_id

OUTCOME = Outcome(
    verdict=Valid(rewards={}, total=1.0, assurance=Assurance.CANARY, detail="d" * 1000), stop=StopReason.FINISHED
)


def fill(home: Path) -> None:
    """Finish attempts with large events until a write fails; then make room and finish the one that failed."""
    ballast = home / "ballast"
    ballast.write_bytes(b"\0" * 200_000)
    store = Store(None, home)
    spec = RunSpec(tasks=("/t",), agents=(Agent(name="nop", harness="nop"),))
    store.create_run(
        Run(id="r-1", spec=spec, created_at=now()),
        [Attempt(id=attempt_id("r-1", n), run="r-1", task="t", agent="nop", index=n, seed=n) for n in range(1, 401)],
    )
    counted, said = _finish_until_full(store)
    assert "disk" in said, said
    done = [attempt.id for attempt in store.attempts("r-1", AttemptState.DONE)]
    assert done == counted, "a result that was reported as counted is missing"
    said = _fill_blobs(home)
    assert "disk" in said or "large" in said, said
    ballast.unlink()
    if "disk is full" in said:  # the small disk, unlike the limit on a file's size, has room again
        assert _finish(store, len(counted) + 1), "the attempt that met the full disk could not be finished afterwards"
    store.close()
    print("kept everything:", len(done))


def _finish(store: Store, n: int) -> str | None:
    attempt = attempt_id("r-1", n)
    log = EventLog(store, attempt, store.begin_execution(attempt, "h-x") or 0)
    log.emit(EventKind.NOTE, {"text": "x" * 20_000})
    return attempt if log.finish(OUTCOME) else None


def _finish_until_full(store: Store) -> tuple[list[str], str]:
    counted: list[str] = []
    while len(counted) < 400:
        try:
            counted.append(_finish(store, len(counted) + 1) or "not counted")
        except StoreFault as fault:
            return counted, str(fault)
    raise AssertionError("the disk never filled")


def _fill_blobs(home: Path) -> str:
    blobs = Blobs(home / "blobs")
    try:
        blobs.put(b"y" * 3_000_000)
    except StoreFault as fault:
        left = [path for path in (home / "blobs").rglob("*") if path.is_file()]
        return f"a half-written blob remains: {left}" if left else str(fault)
    raise AssertionError("the blob was stored on a full disk")
