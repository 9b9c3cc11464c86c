"""Cut off: attempts without a result that nobody is at work on: why, and what of them is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from woodshed.model import Attempt, AttemptState, Event, EventKind, Run, RunState, Used
from woodshed.services.home import Home

_AT_REST = (RunState.CANCELLED, RunState.PAUSED, RunState.INTERRUPTED)


@dataclass(frozen=True, slots=True)
class CutOff:
    """``why`` there is no result, and by stage what its newest execution took, as far as that was written.

    ``stop`` is ``cancelled`` where somebody or something asked for the end; None where it had not begun, or its process
    died.
    """

    why: str
    stop: str | None = None
    stages_s: dict[str, float] = field(default_factory=dict)
    used: dict[str, Used] = field(default_factory=dict)


def cut_off(home: Home, run: Run, attempts: Sequence[Attempt]) -> dict[str, CutOff]:
    """Of a run that nobody is at work on, each attempt without a result; none of any other run."""
    if run.state not in _AT_REST:
        return {}
    found = {attempt.id: _one(home, run, attempt) for attempt in attempts if attempt.state is AttemptState.PENDING}
    return {name: one for name, one in found.items() if one is not None}


def _one(home: Home, run: Run, attempt: Attempt) -> CutOff | None:
    if not attempt.executions:
        why = f"it had not begun when the run was cancelled{': ' if run.reason else ''}{run.reason or ''}"
        return CutOff(why) if run.state is RunState.CANCELLED else None
    last = home.store.executions(attempt.id)[-1]
    stages_s, used = _taken(home.store.events(attempt.id, last.number))
    if last.outcome is None:
        return CutOff("its process died", None, stages_s, used)
    detail = getattr(last.outcome.verdict, "detail", "")
    return CutOff(detail or "it was cut off", last.outcome.stop.value, stages_s, used)


def _taken(events: Sequence[Event]) -> tuple[dict[str, float], dict[str, Used]]:
    """Seconds and use by stage: each stage tells them as it ends, the one that is cut off, too."""
    seconds, used = dict[str, float](), dict[str, Used]()
    for event in events:
        if event.kind is EventKind.STAGE:
            name = str(event.data["stage"])
            seconds[name] = seconds.get(name, 0.0) + float(event.data["seconds"])
            if "used" in event.data:
                took = Used.model_validate(event.data["used"])
                used[name] = used[name].plus(took) if name in used else took
    return seconds, used
