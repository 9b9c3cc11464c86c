"""Shared runs: planned here, executed by whatever workers there are, and steered from anywhere."""

from __future__ import annotations

import getpass
import os
import platform
import re
from collections.abc import Sequence
from datetime import datetime

from woodshed import plugins
from woodshed.engine.control import Control
from woodshed.engine.lease import owner
from woodshed.errors import UsageError
from woodshed.model import Run, RunSpec, RunState, Task
from woodshed.model.event import now
from woodshed.services import naming, projects
from woodshed.services.home import Home
from woodshed.services.runs import planned
from woodshed.store.ids import new_run_id
from woodshed.store.limits import Limit
from woodshed.store.queue import Submission, SubmissionState
from woodshed.store.rollouts import Request

_POOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


def pool_name(text: str) -> str:
    """``text``, the name of a pool; empty for the workers and runs that have none. Raises UsageError for no name."""
    if text and not _POOL.fullmatch(text):
        raise UsageError(f"{text!r} is no name of a pool", field="--pool",
                         remedy="Use up to 63 letters, digits, '.', '_' and '-'.")
    return text


def submit(
    home: Home, spec: RunSpec, tasks: Sequence[Task], *, priority: int = 0, key: str | None = None,
    not_before: datetime | None = None, slots: int | None = None, pool: str = "", request: Request | None = None,
    project: str | None = None,
) -> Run:  # fmt: skip
    """The run, recorded and offered to workers; nothing starts here. With a ``key`` given before: that earlier run.

    A higher ``priority`` goes first, ``slots`` bounds its attempts at work at once, none begins before ``not_before``.
    Only workers of ``pool`` take it. It has the id of the ``request`` for rollouts that it is of, and is the
    ``project``'s (default: as the setting says). Raises UsageError for an agent that this machine does not know.
    """
    for agent in spec.agents:
        plugins.harness(agent.harness)
    run_id = new_run_id() if request is None else request.run
    run = Run(id=run_id, project=projects.named(project), spec=spec, state=RunState.QUEUED, created_at=now())
    submission = Submission(run=run.id, project=run.project, key=key, priority=priority, slots=slots,
                            not_before=not_before, pool=pool_name(pool), run_s=spec.deadlines.run_s)
    endpoints = {agent.name: agent.model.base_url for agent in spec.agents if agent.model}
    return home.store.run(Control(home.store).submit(run, planned(run, tasks), submission, endpoints, request))


def turn(
    home: Home, name: str, state: SubmissionState, reason: str | None = None, *, project: str | None = None
) -> Run:
    """The run, paused, open again or cancelled. ``last`` names the newest (of the ``project``).

    What runs of a paused one goes on to its end; of a cancelled one it is stopped, its evidence kept, and its attempts
    never get a result. One whose attempts all have their results is finished. So it is whether workers have the run or
    one process has it alone; only what workers have can be opened again. Raises UsageError where the run is over.
    """
    run, control = naming.run(home, name, project), Control(home.store)
    match state:
        case SubmissionState.OPEN:
            control.resume(run.id)
        case SubmissionState.PAUSED:
            control.pause(run.id, reason)
        case _:
            control.cancel(run.id, reason or f"by {_whom()}")
            if run.executor and owner(home.path, run.executor) is None:
                home.store.alone.end(run.id)
    return home.store.run(run.id)


def _whom() -> str:
    """Whoever asks here, for the record."""
    try:
        return f"{getpass.getuser()} on {platform.node()}"
    except (KeyError, OSError):  # no name belongs to the number
        return f"user {os.getuid()} on {platform.node()}"


def reopen(home: Home, project: str) -> list[Run]:
    """Let every paused run of a project go on that workers have; which those are, oldest first."""
    paused = [run for run in home.store.runs(project, unfinished=True) if run.state is RunState.PAUSED]
    return [turn(home, run.id, SubmissionState.OPEN) for run in reversed(paused)
            if home.store.queue.submission(run.id) is not None]


def limit(home: Home, scope: str, *, slots: int | None = None, per_minute: float | None = None) -> Limit:
    """What bounds ``project:NAME`` or ``endpoint:URL`` from now on: so many at work at once, so many begun a minute.

    With neither, what stands is lifted. Raises UsageError for a scope that is none.
    """
    kind, _, name = scope.partition(":")
    if kind not in ("project", "endpoint") or not name:
        raise UsageError(f"{scope!r} is nothing that can be bounded", field="scope",
                         remedy="Say project:NAME, or endpoint:URL as the agent's model has it.")
    if kind == "endpoint":
        scope = f"endpoint:{name.rstrip('/')}"
    home.store.limits.set(scope, slots=slots, per_minute=per_minute)
    return next((one for one in home.store.limits.all() if one.scope == scope), Limit(scope=scope))
