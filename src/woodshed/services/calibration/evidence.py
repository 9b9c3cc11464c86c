"""What a check's attempts and events say about each task, read from the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from woodshed.errors import StoreFault
from woodshed.model import Attempt, AttemptState, ChangeSet, Event, EventKind, Invalid, Valid
from woodshed.services.calibration.ruling import Try, p95
from woodshed.services.home import Home

_TAIL_BYTES = 20_000


def by_task(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Attempts by the id of their task, in order."""
    grouped: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        grouped.setdefault(attempt.task, []).append(attempt)
    return grouped


def valid(attempt: Attempt) -> bool:
    """True where it has a verdict that counts."""
    return attempt.outcome is not None and isinstance(attempt.outcome.verdict, Valid)


def passed(attempt: Attempt) -> bool:
    """True where its verdict counts and is a pass."""
    verdict = attempt.outcome.verdict if attempt.outcome else None
    return isinstance(verdict, Valid) and verdict.passed


def changes(home: Home, attempt: Attempt) -> list[ChangeSet]:
    """What a finished attempt had changed by the end of each of its steps. Raises StoreFault where nothing is kept."""
    found = [ChangeSet.model_validate(event.data) for event in home.store.events(attempt.id, attempt.executions)
             if event.kind is EventKind.CHANGES and "changes" in event.data]
    if not found:
        raise StoreFault(f"the changes of {attempt.id} are not on record")
    return found


def verify_s(home: Home, attempts: Iterable[Attempt]) -> float | None:
    """The 95th percentile of the seconds that the tests took on the reference's end state; None of nothing."""
    taken = [tried(home, one).verify_s for one in attempts if one.agent == "oracle" and passed(one)]
    return p95([seconds for seconds in taken if seconds is not None])


def tried(home: Home, attempt: Attempt) -> Try:
    """One attempt as evidence; ``verdict`` is None while it is open."""
    if attempt.outcome is None or attempt.state is not AttemptState.DONE:
        return Try(verdict=None)
    verdict = attempt.outcome.verdict
    runs = [event for event in home.store.events(attempt.id, attempt.executions) if event.kind is EventKind.VERIFIER]
    own = [event for event in runs if event.data.get("run") == "verify"]
    memory = [int(event.data["memory_bytes"]) for event in runs if event.data.get("memory_bytes") is not None]
    failed = isinstance(verdict, Invalid) or not verdict.passed
    return Try(
        verdict=verdict,
        stop=attempt.outcome.stop,
        act_s=attempt.outcome.stages_s.get("act", 0.0),
        verify_s=float(own[-1].data["seconds"]) if own else None,
        memory_bytes=max(memory, default=None),
        output=_output(home, runs) if (failed and attempt.agent == "oracle") or not own else "",
    )


def _output(home: Home, runs: Sequence[Event]) -> str:
    """The end of what the tests printed, of all runs."""
    told = []
    for event in runs:
        with home.blobs.open(event.data["output_blob"]) as source:
            told.append(source.read()[-_TAIL_BYTES:].decode(errors="replace"))
    return "\n".join(told)
