"""Queue: the attempts of shared runs, which any worker may take. All SQL of claims, heartbeats and reaping is here.

A shared run has a row in ``submissions``; each of its attempts that is not done has one in ``queued``. A worker claims
rows for itself, beats while it lives, and settles each row when the attempt is done or to be tried again. Who stops
beating is reaped: its executions are lost, its attempts are free again, and the fence of :mod:`woodshed.store.records`
keeps whatever it may still say from counting. Claims are made one at a time (SQLite's write lock, an advisory lock on
PostgreSQL), so that no bound is ever exceeded, however many workers claim together.

Heartbeats and delays are told by a clock that nobody sets (:mod:`woodshed.store.clock`); times that users name, by the
wall's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa

from woodshed.errors import UsageError
from woodshed.model import Attempt, Record, RunState
from woodshed.model.event import now
from woodshed.store import clock, closing, deaths, ends, limits, rows
from woodshed.store.ids import run_of
from woodshed.store.messages import OPEN
from woodshed.store.sharing import Waiting, share_out
from woodshed.store.tables import attempts, executions, messages, queued, runs, submissions, workers
from woodshed.store.text import stamp

_REAP_LOCK = 0x77726170  # "wrap": the key of PostgreSQL's advisory lock around reaping
Writing = Callable[[str], AbstractContextManager[sa.Connection]]


class Lane(StrEnum):
    """Where an attempt waits. QUARANTINE holds those that may have killed their workers; one of them runs at a time."""

    MAIN = "main"
    QUARANTINE = "quarantine"


class SubmissionState(StrEnum):
    """How a shared run stands in the queue. PAUSED hands out nothing; CANCELLED also calls back what runs.

    So does OVERDUE, whose time was over; it may be opened again.
    """

    OPEN = "open"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    OVERDUE = "overdue"
    CLOSED = "closed"


_CALLED_OFF = (SubmissionState.CANCELLED.value, SubmissionState.OVERDUE.value)


class Submission(Record):
    """A shared run in the queue. ``slots`` bounds its attempts at work at once; None: as many as workers offer.

    Workers of its ``pool`` take it and no others; those without a name take runs without one.
    """

    run: str
    project: str = "default"
    key: str | None = None
    priority: int = 0
    slots: int | None = None
    pool: str = ""
    not_before: datetime | None = None
    run_s: float | None = None
    timed_at: float | None = None
    timed_until: float | None = None
    state: SubmissionState = SubmissionState.OPEN
    reason: str | None = None


class Worker(Record):
    """A process that takes attempts. ``beat`` is seconds on the queue's own clock."""

    executor: str
    host: str
    pid: int
    started_at: datetime
    beat: float
    slots: int
    busy: int
    state: str
    pool: str = ""
    boot: str = ""


class Beat(NamedTuple):
    """What a worker is to heed: attempts to call off, and attempts that have something to hear."""

    off: tuple[str, ...] = ()
    spoken: tuple[str, ...] = ()


class Depth(Record):
    """What waits and what runs, now."""

    ready: int = 0
    delayed: int = 0
    running: int = 0
    quarantined: int = 0


class Reaped(Record):
    """A worker that stopped beating, and the attempts it had; ``suspects`` of them were there at too many deaths."""

    executor: str
    attempts: tuple[str, ...]
    suspects: tuple[str, ...] = ()


class Queue:
    """See the module. Every method is synchronous, short and one transaction; it raises StoreFault like the store."""

    def __init__(self, engine: sa.Engine, writing: Writing, reading: Writing) -> None:
        self._write, self._read = writing, reading
        self._server = engine.dialect.name == "postgresql"

    # -- submissions ---------------------------------------------------------------------------------------------------

    def submit(
        self, submission: Submission, planned: Sequence[Attempt], endpoints: Mapping[str, str], *,
        create: Callable[[sa.Connection], None] = lambda connection: None,
    ) -> str:
        """Offer the attempts of a run that the store has, or that ``create`` writes now. Returns the run that holds

        the idempotency key: this, or the one that was submitted with it before; then nothing is written. ``endpoints``
        maps an agent to what it loads.
        """
        with self._write("submitting the run") as connection:
            limits.alone(connection)
            if (holder := _holder(connection, submission)) is not None:
                return holder
            create(connection)
            row = submission.to_json()
            row["not_before"] = None if submission.not_before is None else stamp(submission.not_before)
            connection.execute(sa.insert(submissions), row | {"created_at": stamp(now())})
            waiting = [
                {"attempt": attempt.id, "run": attempt.run, "project": attempt.project, "number": number,
                 "endpoint": endpoints.get(attempt.agent, ""), "lane": Lane.MAIN.value, "deaths": 0}
                for number, attempt in enumerate(planned, 1)
            ]
            if waiting:
                connection.execute(sa.insert(queued), waiting)
            return submission.run

    def find(self, project: str, key: str) -> str | None:
        """The run that was submitted with this idempotency key, or None."""
        with self._read("looking a submission up") as connection:
            return _holder(connection, Submission(run="", project=project, key=key))

    def submission(self, run_id: str) -> Submission | None:
        """How the run stands in the queue; None where it is not shared."""
        query = sa.select(submissions).where(submissions.c.run == run_id)
        with self._read("reading a submission") as connection:
            row = connection.execute(query).mappings().one_or_none()
        if row is None:
            return None
        return rows.record(Submission, f"submission of {run_id}", row, without=("created_at",))

    def turn(self, run_id: str, state: SubmissionState, reason: str | None = None) -> None:
        """Pause, open, cancel or close a shared run, and record where the run stands.

        Nothing more is handed out of a run that is not open once this returns. One whose attempts all have their
        results is finished, whatever was asked. Raises UsageError where it is not shared, or is over.
        """
        over = [state.value for state in (SubmissionState.CANCELLED, SubmissionState.CLOSED)]
        change = (sa.update(submissions).where(submissions.c.run == run_id)
                  .where(sa.or_(submissions.c.state.not_in(over), submissions.c.state == state.value))
                  .values(state=state.value, reason=reason, **ends.NONE))
        with self._write("changing a submission") as connection:
            limits.alone(connection)
            if connection.execute(change).rowcount:
                if state is SubmissionState.CANCELLED:
                    closing.clear(connection, run_id)
                if state is SubmissionState.OPEN:
                    ends.begin(connection, [run_id])
                connection.execute(closing.standing(run_id, state.value, reason))
                closing.close(connection, run_id)
                return
            there = connection.execute(sa.select(submissions.c.state).where(submissions.c.run == run_id)).scalar()
        said = f"{run_id} is {there}" if there else f"{run_id} is not shared between workers"
        raise UsageError(said, field="run", remedy="'woodshed show' lists the runs and how they stand.")

    # -- taking --------------------------------------------------------------------------------------------------------

    def claim(self, executor: str, wanted: int, lane: Lane = Lane.MAIN) -> list[Attempt]:
        """At most ``wanted`` attempts, this worker's from now on. By priority; projects share evenly; oldest first.

        None where the worker was reaped or drains. In quarantine one attempt runs at a time, wherever workers are.
        """
        if wanted <= 0:
            return []
        with self._write("claiming attempts") as connection:
            limits.alone(connection)
            if (pool := connection.execute(_POOL, {"me": executor}).scalar()) is None:
                return []
            if lane is Lane.QUARANTINE:
                busy = sa.select(sa.func.count()).where(queued.c.lane == lane.value, queued.c.worker.is_not(None))
                wanted = 0 if connection.execute(busy).scalar_one() else 1
            taken = self._choose(connection, wanted, lane, pool)
            if not taken:
                return []
            connection.execute(_CLAIM, {"these": taken, "me": executor, "at": stamp(now())})
            of = sorted({run_of(attempt) for attempt in taken})
            if connection.execute(_BEGUN, {"these": of}).rowcount:
                ends.begin(connection, of)
            found = {row["id"]: rows.attempt(row)
                     for row in connection.execute(_ATTEMPTS, {"these": taken}).mappings()}
            return [found[attempt] for attempt in taken]

    def _choose(self, connection: sa.Connection, wanted: int, lane: Lane, pool: str) -> list[str]:
        there: dict[str, Any] = {"lane": lane.value, "at": stamp(now()), "pool": pool}
        open_runs = {row.run: row for row in connection.execute(_OPEN_RUNS, there)}
        if not open_runs:
            return []
        there["clock"] = clock.seconds(connection)
        ready = {(row.run, row.endpoint): row.many for row in connection.execute(_READY, there)}
        if not any(run in open_runs for run, _ in ready):
            return []
        at_work = limits.at_work(connection)
        running = {(row.run, row.endpoint): row.many for row in at_work}
        groups = [
            Waiting(**open_runs[run]._mapping, endpoint=endpoint, ready=ready.get((run, endpoint), 0),
                    running=running.get((run, endpoint), 0))
            for run, endpoint in dict.fromkeys([*ready, *running]) if run in open_runs
        ]
        chosen = share_out(groups, wanted, limits.room(connection, groups, at_work))
        taken: list[str] = []
        for (run, endpoint), count in chosen.items():
            taken += connection.execute(_NEXT, there | {"run": run, "endpoint": endpoint, "count": count}).scalars()
        limits.spend(connection, chosen, groups)
        return taken

    def done(self, attempt_id: str) -> None:
        """The attempt has its result: nothing of it waits any more. Idempotent."""
        with self._write("settling an attempt") as connection:
            self.remove(connection, attempt_id)

    def give_back(self, attempt_id: str, executor: str, *, after_s: float = 0.0) -> bool:
        """The attempt is free again, in ``after_s`` at the earliest. False where it is no longer this worker's."""
        with self._write("giving an attempt back") as connection:
            at = clock.seconds(connection) if after_s > 0 else None
            return connection.execute(
                sa.update(queued).where(queued.c.attempt == attempt_id, queued.c.worker == executor)
                .values(worker=None, claimed_at=None, delayed_at=at, delayed_until=None if at is None else at + after_s)
            ).rowcount == 1

    def called_off(self, attempt_id: str, executor: str) -> None:
        """This worker's attempt was stopped: nothing of it waits where its run was cancelled, else it is free again."""
        cancelled = sa.select(submissions.c.run).where(submissions.c.state == SubmissionState.CANCELLED.value)
        with self._write("giving an attempt back") as connection:
            connection.execute(sa.delete(queued).where(queued.c.attempt == attempt_id, queued.c.run.in_(cancelled)))
            connection.execute(sa.update(queued).where(queued.c.attempt == attempt_id, queued.c.worker == executor)
                               .values(worker=None, claimed_at=None))

    def overdue(self) -> list[str]:
        """Open runs whose time is over hand out nothing more, and what runs of them is called off; which they are."""
        with self._read("reading the queue") as connection:
            found, anew = ends.over(connection)
        if anew:
            with self._write("beginning the time of runs anew") as connection:
                ends.begin(connection, anew)
        for run, run_s in found:
            self.turn(run, SubmissionState.OVERDUE, f"the run's deadline of {run_s:g} s is over")
        return [run for run, _ in found]

    def holds(
        self, connection: sa.Connection, attempt_id: str, executor: str, *, to_change: bool = False
    ) -> bool:
        """Whether the attempt is this worker's, and stays so until the transaction ends, which may change its row."""
        query = _HELD_TO_CHANGE if to_change else _HELD
        return connection.execute(query, {"this": attempt_id}).scalar() == executor

    def remove(self, connection: sa.Connection, attempt_id: str) -> None:
        """Nothing of the attempt waits any more, from the end of the transaction on."""
        connection.execute(_REMOVE, {"this": attempt_id})

    # -- workers -------------------------------------------------------------------------------------------------------

    def enlist(self, executor: str, *, host: str, pid: int, slots: int, pool: str = "") -> None:
        """A worker begins."""
        with self._write("enlisting a worker") as connection:
            connection.execute(sa.insert(workers), {
                "executor": executor, "host": host, "pid": pid, "started_at": stamp(now()), "slots": slots, "busy": 0,
                "beat": clock.seconds(connection), "state": "working", "pool": pool, "boot": deaths.boot(),
            })
            deaths.pardon(connection, host)

    def beat(self, executor: str, *, slots: int, busy: int) -> Beat | None:
        """This worker lives. Which of its attempts to call off, as their run was cancelled or is overdue, and which

        have something to hear; None: it was reaped.
        """
        with self._write("beating") as connection:
            lives = connection.execute(
                sa.update(workers).where(workers.c.executor == executor, workers.c.state != "gone")
                .values(beat=clock.seconds(connection), slots=slots, busy=busy)
            ).rowcount
            if not lives:
                return None
            found = connection.execute(_HEED, {"me": executor}).all()
            return Beat(tuple(row.attempt for row in found if row.state in _CALLED_OFF),
                        tuple(row.attempt for row in found if row.state not in _CALLED_OFF))

    def drain(self, executor: str) -> None:
        """The worker is to take nothing more; it ends when what it has is done."""
        with self._write("draining a worker") as connection:
            connection.execute(sa.update(workers).where(workers.c.executor == executor, workers.c.state == "working")
                               .values(state="draining"))

    def leave(self, executor: str) -> None:
        """The worker has ended by itself. What it still had is free again, and no death is counted."""
        with self._write("taking leave") as connection:
            deaths.release(connection, executor, deaths=0)
            connection.execute(sa.delete(workers).where(workers.c.executor == executor))

    def reap(self, silent_s: float) -> list[Reaped]:
        """Workers that have not beaten for ``silent_s`` are gone, what they had is free again. One reaps at a time."""
        with self._write("reaping") as connection:
            if self._server:
                alone = sa.select(sa.func.pg_try_advisory_xact_lock(_REAP_LOCK))
                if not connection.execute(alone).scalar():
                    return []
            at = clock.seconds(connection)
            silent = sa.or_(workers.c.beat < at - silent_s, workers.c.beat > at + clock.SKEW_S)  # or of an earlier boot
            dead = connection.execute(
                sa.select(workers.c.executor).where(workers.c.state != "gone", silent)).scalars().all()
            return [self._bury(connection, executor) for executor in dead]

    def reap_one(self, executor: str) -> Reaped | None:
        """As :meth:`reap`, of a worker that is known to be dead; None where that was done."""
        with self._write("reaping") as connection:
            there = sa.select(workers.c.executor).where(workers.c.executor == executor, workers.c.state != "gone")
            return None if connection.execute(there).scalar() is None else self._bury(connection, executor)

    def _bury(self, connection: sa.Connection, executor: str) -> Reaped:
        had, suspects = deaths.bury(connection, executor)
        return Reaped(executor=executor, attempts=tuple(had), suspects=suspects)

    def forget(self, after_s: float) -> int:
        """Rows of workers that are gone for so long are deleted; how many."""
        with self._write("forgetting workers") as connection:
            return deaths.forget(connection, clock.seconds(connection), clock.SKEW_S, after_s)

    # -- looking -------------------------------------------------------------------------------------------------------

    def workers(self) -> list[Worker]:
        """Those that live, and those that were reaped; oldest first."""
        with self._read("reading workers") as connection:
            found = connection.execute(sa.select(workers).order_by(workers.c.started_at)).mappings()
            return [rows.record(Worker, f"worker {row['executor']}", row) for row in found]

    def deaths(self, attempt_id: str) -> int:
        """At how many deaths of a worker the attempt was running since it last got any further."""
        with self._read("reading the queue") as connection:
            query = sa.select(queued.c.deaths).where(queued.c.attempt == attempt_id)
            return connection.execute(query).scalar() or 0

    def held(self, executor: str) -> list[str]:
        """The attempts that are this worker's."""
        with self._read("reading the queue") as connection:
            query = sa.select(queued.c.attempt).where(queued.c.worker == executor)
            return list(connection.execute(query).scalars())

    def left(self, run_id: str) -> int:
        """How many attempts of the run are not done."""
        with self._read("reading the queue") as connection:
            return connection.execute(sa.select(sa.func.count()).where(queued.c.run == run_id)).scalar_one()

    def close_exhausted(self) -> list[str]:
        """Shared runs all of whose attempts have their results are finished: those that this call closed."""
        with self._read("reading the queue") as connection:  # most often there is none, and nobody waits for a lock
            found = closing.spent(connection)
        closed = []
        for run in found:
            with self._write("closing a run") as connection:
                limits.alone(connection)
                if connection.execute(_IS_CANCELLED, {"this": run}).scalar():
                    closing.clear(connection, run)  # what a worker had that died meanwhile
                if closing.close(connection, run):
                    closed.append(run)
        return closed

    def suspected(self, pool: str = "") -> bool:
        """Whether an attempt of the pool that may begin now waits in quarantine, and none of any pool runs there."""
        query = (sa.select(queued.c.worker, submissions.c.pool).join(submissions, submissions.c.run == queued.c.run)
                 .where(queued.c.lane == Lane.QUARANTINE.value, submissions.c.state == SubmissionState.OPEN.value)
                 .where(_UNDELAYED))
        with self._read("reading the queue") as connection:
            found = connection.execute(query, {"clock": clock.seconds(connection)}).all()
        return any(row.pool == pool for row in found) and not any(row.worker for row in found)

    def pace(self, pool: str = "", over: int = 100) -> float | None:
        """Mean seconds of the pool's last executions that ended by themselves; None before there was one."""
        query = (sa.select(executions.c.started_at, executions.c.finished_at)
                 .join(attempts, attempts.c.id == executions.c.attempt)
                 .join(submissions, submissions.c.run == attempts.c.run)
                 .where(submissions.c.pool == pool, executions.c.state == "done", executions.c.finished_at.is_not(None))
                 .order_by(executions.c.finished_at.desc()).limit(over))
        with self._read("reading executions") as connection:
            ended = connection.execute(query).all()
        spans = [(datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() for begin, end in ended]
        return max(0.0, sum(spans) / len(spans)) if spans else None

    def depth(self, pool: str | None = None) -> Depth:
        """What waits and runs of the runs that are open; of one pool, or of all."""
        at = stamp(now())
        waits = sa.and_(queued.c.worker.is_(None), queued.c.lane == Lane.MAIN.value)
        later = sa.and_(waits, sa.or_(sa.not_(_UNDELAYED), submissions.c.not_before > at))
        counts = [sa.func.coalesce(sa.func.sum(sa.case((what, 1), else_=0)), 0) for what in (
            later, waits, queued.c.worker.is_not(None), queued.c.lane == Lane.QUARANTINE.value)]
        query = (sa.select(*counts).select_from(queued.join(submissions, submissions.c.run == queued.c.run))
                 .where(submissions.c.state == SubmissionState.OPEN.value)
                 .where(sa.true() if pool is None else submissions.c.pool == pool))
        with self._read("reading the queue") as connection:
            delayed, waiting, running, held = connection.execute(query, {"clock": clock.seconds(connection)}).one()
        return Depth(ready=waiting - delayed, delayed=delayed, running=running, quarantined=held)


_THESE = sa.bindparam("these", type_=sa.String, expanding=True)
_ME, _AT, _LANE = (sa.bindparam(name, type_=sa.String) for name in ("me", "at", "lane"))
_POOL = sa.select(workers.c.pool).where(workers.c.executor == _ME, workers.c.state == "working")
_CLAIM = sa.update(queued).where(queued.c.attempt.in_(_THESE)).values(worker=_ME, claimed_at=_AT)
_BEGUN = (sa.update(runs).where(runs.c.id.in_(_THESE), runs.c.state == RunState.QUEUED.value)
          .values(state=RunState.RUNNING.value))
_ATTEMPTS = sa.select(attempts).where(attempts.c.id.in_(_THESE))
_OPEN_RUNS = (
    sa.select(submissions.c.run, submissions.c.project, submissions.c.priority, submissions.c.created_at,
              submissions.c.slots)
    .where(submissions.c.state == SubmissionState.OPEN.value)
    .where(submissions.c.pool == sa.bindparam("pool", type_=sa.String))
    .where(sa.or_(submissions.c.not_before.is_(None), submissions.c.not_before <= _AT))
)
_CLOCK = sa.bindparam("clock", type_=sa.Float)
_UNDELAYED = sa.or_(queued.c.delayed_until.is_(None), queued.c.delayed_until <= _CLOCK,
                    queued.c.delayed_at > _CLOCK + clock.SKEW_S)  # by the clock of an earlier boot
_FREE = sa.and_(queued.c.worker.is_(None), queued.c.lane == _LANE, _UNDELAYED)
_READY = (sa.select(queued.c.run, queued.c.endpoint, sa.func.count().label("many")).where(_FREE)
          .group_by(queued.c.run, queued.c.endpoint))
_NEXT = (
    sa.select(queued.c.attempt).where(_FREE, queued.c.run == sa.bindparam("run", type_=sa.String))
    .where(queued.c.endpoint == sa.bindparam("endpoint", type_=sa.Text))
    .order_by(queued.c.number).limit(sa.bindparam("count", type_=sa.Integer))
)
_HEED = (
    sa.select(queued.c.attempt, submissions.c.state).join(submissions, submissions.c.run == queued.c.run)
    .where(queued.c.worker == _ME)
    .where(sa.or_(submissions.c.state.in_(_CALLED_OFF),
                  sa.exists().where(messages.c.attempt == queued.c.attempt, OPEN)))
)
_THIS = sa.bindparam("this", type_=sa.String)
_HELD = sa.select(queued.c.worker).where(queued.c.attempt == _THIS).with_for_update(read=True)
_HELD_TO_CHANGE = sa.select(queued.c.worker).where(queued.c.attempt == _THIS).with_for_update()
_IS_CANCELLED = sa.select(submissions.c.state == SubmissionState.CANCELLED.value).where(submissions.c.run == _THIS)
_REMOVE = sa.delete(queued).where(queued.c.attempt == _THIS)
"""What claims and results ask, made once: it is asked for every attempt."""


def _holder(connection: sa.Connection, submission: Submission) -> str | None:
    if submission.key is None:
        return None
    return connection.execute(sa.select(submissions.c.run).where(
        submissions.c.project == submission.project, submissions.c.key == submission.key)).scalar()
