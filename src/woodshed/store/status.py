"""Status: how runs and attempts stand, in few queries and without a lock. Nobody who executes them is asked.

What is written may lag behind: the log of a coarse attempt is written with events that come a second after the last
write, so that a turn shows when the next one has begun, or its answer has come.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from woodshed.errors import UsageError
from woodshed.model import AttemptState, EventKind, RunState
from woodshed.model.status import AttemptStatus, RunStatus
from woodshed.store import rows
from woodshed.store.messages import OPEN
from woodshed.store.tables import attempts, events, executions, limits, messages, runs, schedules, workers

Reading = Callable[[str], AbstractContextManager[sa.Connection]]
STAGES = ("prepare", "act", "capture", "verify", "grade", "close")
_OWN = sa.not_(events.c.data.like('%,"parent":"%"}'))
"""Of an answer: not one to a helper. The mark stands last in the data, and a text's quotes are escaped."""


class Status:
    """Made by :attr:`Store.status`; raises StoreFault as the store does."""

    def __init__(self, read: Reading) -> None:
        self._read = read

    def projects(self) -> set[str]:
        """Every project that has a run, a schedule, or a bound."""
        whose = sa.union(sa.select(runs.c.project), sa.select(schedules.c.project))
        with self._read("listing projects") as connection:
            bounded = connection.scalars(sa.select(limits.c.scope).where(limits.c.scope.like("project:%")))
            return {*connection.scalars(whose), *(scope.removeprefix("project:") for scope in bounded)}

    def of_attempt(self, attempt_id: str) -> AttemptStatus:
        """How an attempt stands. Raises UsageError where there is none."""
        with self._read("reading how an attempt stands") as connection:
            found = _attempts(connection, sa.select(attempts).where(attempts.c.id == attempt_id))
        if not found:
            raise UsageError(f"no attempt '{attempt_id}'", field="attempt", remedy="'woodshed show RUN' lists them.")
        return found[0]

    def of_run(self, run_id: str) -> RunStatus:
        """How a run stands. Raises UsageError where there is none."""
        of, begun = attempts.c.run == run_id, attempts.c.state == AttemptState.RUNNING.value
        counts = sa.select(attempts.c.state, sa.func.count().label("many"), sa.func.min(attempts.c.started_at)
                           .label("first")).where(of).group_by(attempts.c.state)
        pending = sa.select(sa.func.count()).select_from(messages.join(attempts, OPEN)).where(messages.c.run == run_id)
        with self._read("reading how a run stands") as connection:
            row = connection.execute(sa.select(runs).where(runs.c.id == run_id)).mappings().one_or_none()
            if row is None:
                raise UsageError(f"no run '{run_id}'", field="run", remedy="'woodshed show' lists the runs.")
            by = {found.state: found for found in connection.execute(counts)}
            at_work = _attempts(connection, sa.select(attempts).where(of, begun).order_by(attempts.c.number))
            waiting = connection.execute(pending).scalar_one()
        total = sum(found.many for found in by.values())
        done = by[AttemptState.DONE.value].many if AttemptState.DONE.value in by else 0
        first = min((found.first for found in by.values() if found.first), default=None)
        over = row["finished_at"] if row["state"] in (RunState.FINISHED.value, RunState.CANCELLED.value) else None
        told = {
            "run": run_id, "project": row["project"], "state": row["state"], "reason": row["reason"],
            "since": over or first or row["created_at"], "attempts": total, "done": done, "open": total - done,
            "pending": waiting, "workers": sorted({one.worker for one in at_work if one.worker}),
            "stages": Counter(one.stage for one in at_work if one.stage), "at_work": at_work,
        }
        return rows.record(RunStatus, f"run {run_id}", told)


def _attempts(connection: sa.Connection, query: sa.Select[Any]) -> list[AttemptStatus]:
    found = connection.execute(query).mappings().all()
    newest = {row["id"]: row["executions"] for row in found if row["executions"]}
    latest = {row["attempt"]: row for row in connection.execute(_LATEST, {"these": list(newest)}).mappings()} \
        if newest else {}
    at_work = {row["id"] for row in found if row["state"] == AttemptState.RUNNING.value}
    stages, turns = _stages(connection, at_work), _turns(connection, newest)
    counted = {row.attempt: row.many for row in connection.execute(
        _PENDING, {"these": [row["id"] for row in found]})} if found else {}
    made = {row.id: row.created_at for row in connection.execute(
        sa.select(runs.c.id, runs.c.created_at).where(runs.c.id.in_({row["run"] for row in found})))} if found else {}
    return [_status(row, latest.get(row["id"]), stages.get(row["id"]), turns.get(row["id"], 0),
                    counted.get(row["id"], 0), made[row["run"]]) for row in found]


def _status(
    row: Mapping[Any, Any], execution: Mapping[Any, Any] | None, stage: str | None, turn: int, pending: int, made: str
) -> AttemptStatus:
    running, done = row["state"] == AttemptState.RUNNING.value, row["state"] == AttemptState.DONE.value
    since = made
    if execution is not None:
        since = execution["started_at"] if running else execution["finished_at"] or execution["started_at"]
    has = execution if running else None
    told = {
        "attempt": row["id"], "run": row["run"], "project": row["project"], "task": row["task"], "agent": row["agent"],
        "state": row["state"], "execution": row["executions"], "turn": turn, "pending": pending,
        "worker": has["executor"] if has else None, "host": has["host"] if has else None,
        "pid": has["pid"] if has else None,
        "stage": stage if running else None, "since": row["finished_at"] if done and row["finished_at"] else since,
    }
    return rows.record(AttemptStatus, f"attempt {row['id']}", told)


def _stages(connection: sa.Connection, at_work: Iterable[str]) -> dict[str, str]:
    """The stage that each of these is in: that behind the last one that its newest execution has ended."""
    these = list(at_work)
    stages = dict.fromkeys(these, STAGES[0])
    if these:
        for row in connection.execute(_ENDED, {"these": these}):
            stages[row.attempt] = _after(json.loads(row.data))
    return stages


def _after(ended: Mapping[str, Any]) -> str:
    """A task of several steps begins again behind a judgement; that of the last one is followed by the closing."""
    if "step" in ended:
        return STAGES[0]
    name = ended.get("stage")
    following = {"verify": "close", "grade": "close"}
    return following.get(str(name)) or (STAGES[STAGES.index(name) + 1] if name in STAGES[:-1] else STAGES[-1])


def _turns(connection: sa.Connection, newest: Mapping[str, int]) -> dict[str, int]:
    """Answers of each one's model, as far as its newest execution has them: all, where it went on with earlier ones."""
    if not newest:
        return {}
    these = {"these": list(newest)}
    on = set(connection.execute(_WENT_ON, these).scalars())
    turns: Counter[str] = Counter()
    for row in connection.execute(_ANSWERS, these):
        if row.attempt in on or row.execution == newest[row.attempt]:
            turns[row.attempt] += row.many
    return dict(turns)


_THESE = sa.bindparam("these", type_=sa.String, expanding=True)
_NEWEST = sa.and_(events.c.attempt == attempts.c.id, events.c.execution == attempts.c.executions)
_LATEST = (
    sa.select(executions.c.attempt, executions.c.executor, executions.c.started_at, executions.c.finished_at,
              workers.c.host, workers.c.pid)
    .join(attempts, sa.and_(attempts.c.id == executions.c.attempt, attempts.c.executions == executions.c.number))
    .outerjoin(workers, workers.c.executor == executions.c.executor).where(executions.c.attempt.in_(_THESE))
)
_ENDED = (
    sa.select(events.c.attempt, events.c.data).join(attempts, _NEWEST).where(attempts.c.id.in_(_THESE))
    .where(sa.or_(events.c.kind == EventKind.STAGE.value,
                  sa.and_(events.c.kind == EventKind.STATE.value, events.c.data.like('{"state":"step%'))))
    .order_by(events.c.attempt, events.c.seq)
)
_WENT_ON = (
    sa.select(events.c.attempt).distinct().join(attempts, _NEWEST)
    .where(attempts.c.id.in_(_THESE), events.c.kind == EventKind.RESUME.value)
)
_ANSWERS = (
    sa.select(events.c.attempt, events.c.execution, sa.func.count().label("many"))
    .where(events.c.attempt.in_(_THESE), events.c.kind == EventKind.MODEL_RESULT.value, _OWN)
    .group_by(events.c.attempt, events.c.execution)
)
_PENDING = (
    sa.select(messages.c.attempt, sa.func.count().label("many")).join(attempts, OPEN)
    .where(messages.c.attempt.in_(_THESE)).group_by(messages.c.attempt)
)
