"""How a run or an attempt stands now, as the store tells it."""

from __future__ import annotations

from datetime import datetime

from woodshed.model.attempt import AttemptState, RunState
from woodshed.model.record import Record


class AttemptStatus(Record):
    """An attempt. ``worker`` is the executor that has it; ``host`` and ``pid`` are known of workers of shared runs.

    ``stage`` is the one it is in, and ``turn`` how many answers of its model are over: of both, what has been written.
    ``since`` is when its present execution began; of one that is done, when that was, and of one that waits, when it
    was planned, or cut off last. ``pending`` counts messages that it has yet to hear.
    """

    attempt: str
    run: str
    project: str
    task: str
    agent: str
    state: AttemptState
    execution: int
    worker: str | None = None
    host: str | None = None
    pid: int | None = None
    stage: str | None = None
    turn: int = 0
    since: datetime
    pending: int = 0


class RunStatus(Record):
    """A run. ``open`` attempts have no result yet; those of them that are ``at_work`` stand in it one by one.

    ``workers`` are the executors that have some. ``since`` is when its first attempt began, of one that is over its
    end, and of one that has not begun when it was made. ``stages`` counts what is at work by stage.
    """

    run: str
    project: str
    state: RunState
    reason: str | None = None
    since: datetime
    attempts: int
    done: int
    open: int
    pending: int = 0
    workers: tuple[str, ...] = ()
    stages: dict[str, int] = {}
    at_work: tuple[AttemptStatus, ...] = ()
