"""Store: runs, attempts, executions and events, in one database. All SQL that matters stands here, once.

An attempt is counted at most once. ``attempts.executions`` is the fence: the number of its newest execution. A result
is counted only from the newest execution of an attempt that is still running; any other stays on its execution's row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from woodshed.errors import Cancelled, UsageError
from woodshed.model import Attempt, AttemptState, Event, Outcome, Record, Run, RunState, Verdict
from woodshed.model.event import now
from woodshed.model.grade import Regrade, Regraded
from woodshed.store import appending, groups, references, rows
from woodshed.store.alone import Alone
from woodshed.store.captures import Captures
from woodshed.store.groups import Groups
from woodshed.store.limits import Limits
from woodshed.store.messages import Messages
from woodshed.store.opening import READS, faults, open_engine
from woodshed.store.persons import Persons
from woodshed.store.queue import Queue, Submission
from woodshed.store.ratings import Ratings
from woodshed.store.rollouts import Request, Rollouts
from woodshed.store.schedules import Schedules
from woodshed.store.status import Status
from woodshed.store.tables import attempts, events, executions, regraded, regrades, runs
from woodshed.store.text import dump, stamp


class ExecutionState(StrEnum):
    """How an execution stands. DONE gave the attempt its result; the rest are evidence only.

    OPEN is running; LOST ended without a word (its process died); FENCED finished after a newer one had begun;
    SET_ASIDE was cut off when the run was interrupted, with its events kept.
    """

    OPEN = "open"
    DONE = "done"
    LOST = "lost"
    FENCED = "fenced"
    SET_ASIDE = "set_aside"


class Execution(Record):
    """One infrastructure try of an attempt. ``number`` counts from 1."""

    attempt: str
    number: int
    executor: str
    state: ExecutionState
    outcome: Outcome | None = None
    started_at: datetime
    finished_at: datetime | None = None


class Store:
    """The record of everything, safe to use from many threads and many processes at once.

    ``url`` is an SQLAlchemy URL (SQLite or PostgreSQL); None is ``woodshed.db`` in ``home``. Opening brings the schema
    up to date. Every method is synchronous, short, one transaction, and raises StoreFault when the database fails.
    """

    def __init__(self, url: str | None, home: Path) -> None:
        self._engine = open_engine(url, home)

    @property
    def queue(self) -> Queue:
        """The attempts of shared runs, and the workers that take them."""
        return Queue(self._engine, self._write, self._read)

    @property
    def schedules(self) -> Schedules:
        """Standing orders, and each time that they fired."""
        return Schedules(self._engine, self._write, self._read)

    @property
    def limits(self) -> Limits:
        """What bounds how much of a project or an endpoint is at work, or begins."""
        return Limits(self._write, self._read)

    @property
    def groups(self) -> Groups:
        """The attempts of runs by task and agent, handed out when all of them have their results."""
        return Groups(self._engine, self._write, self._read)

    @property
    def status(self) -> Status:
        """How runs and attempts stand."""
        return Status(self._read)

    @property
    def messages(self) -> Messages:
        """What is sent to attempts, wherever they run."""
        return Messages(self._engine, self._write, self._read)

    @property
    def alone(self) -> Alone:
        """Runs that one process works on by itself, steered."""
        return Alone(self._write, self._read)

    @property
    def rollouts(self) -> Rollouts:
        """What trainers asked for, and what they are handed."""
        return Rollouts(self._engine, self._write, self._read)

    @property
    def captures(self) -> Captures:
        """What was told of tokens, counted."""
        return Captures(self._read)

    @property
    def persons(self) -> Persons:
        """What the models took that play persons."""
        return Persons(self._read)

    @property
    def ratings(self) -> Ratings:
        """What people thought of attempts."""
        return Ratings(self._write, self._read)

    def close(self) -> None:
        """Give back the connections. Idempotent."""
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # runs

    def create_run(self, run: Run, planned: Sequence[Attempt]) -> None:
        """Write a run and its attempts, in this order, together. Raises StoreFault if the id is taken."""
        with self._write("creating the run") as connection:
            _create(connection, run, planned)

    def create_shared(
        self, run: Run, planned: Sequence[Attempt], submission: Submission, endpoints: Mapping[str, str],
        request: Request | None = None,
    ) -> str:
        """Write a run and offer its attempts to workers, together; see :meth:`Queue.submit`, whose answer it is.

        With the ``request`` that it is of, where it is one of rollouts.
        """

        def create(connection: sa.Connection) -> None:
            _create(connection, run, planned)
            if request is not None:
                self.rollouts.admit(connection, request)

        return self.queue.submit(submission, planned, endpoints, create=create)

    def add_attempts(self, run_id: str, further: Sequence[Attempt]) -> None:
        """Attempts that follow from what the run has found so far, together, numbered on after those it has."""
        count = sa.select(sa.func.count()).select_from(attempts).where(attempts.c.run == run_id)
        with self._write("adding attempts to the run") as connection:
            first = connection.execute(count).scalar_one() + 1
            if further:
                connection.execute(sa.insert(attempts), [rows.attempt_row(n, a) for n, a in enumerate(further, first)])
                groups.planned(connection, further)

    def run(self, name: str) -> Run:
        """The run with this id; ``last`` names the newest. Raises UsageError when there is none."""
        if name == "last":
            newest = self.newest_run()
            if newest is None:
                raise UsageError("there is no run yet", field="run", remedy="Start one with 'woodshed run'.")
            return newest
        with self._read("reading the run") as connection:
            row = connection.execute(sa.select(runs).where(runs.c.id == name)).mappings().one_or_none()
        if row is None:
            raise UsageError(f"no run '{name}'", field="run", remedy="'woodshed show' lists the runs.")
        return rows.run(row)

    def newest_run(self, project: str | None = None) -> Run | None:
        """The run created last, or None."""
        found = self.runs(project, limit=1)
        return found[0] if found else None

    def runs(self, project: str | None = None, *, limit: int | None = None, unfinished: bool = False) -> list[Run]:
        """Runs, newest first; of one project, or of all; with ``unfinished`` only those."""
        query = sa.select(runs).order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(limit)
        if project is not None:
            query = query.where(runs.c.project == project)
        if unfinished:
            query = query.where(runs.c.state != RunState.FINISHED.value)
        with self._read("listing runs") as connection:
            return [rows.run(row) for row in connection.execute(query).mappings()]

    def set_run_state(self, run_id: str, state: RunState, reason: str | None = None) -> None:
        """Record where the run stands, and why; at the end, when. Setting it twice changes nothing."""
        at = stamp(now()) if state in (RunState.FINISHED, RunState.CANCELLED) else None
        finished = sa.func.coalesce(runs.c.finished_at, at) if at else None
        values = {"state": state.value, "reason": reason, "finished_at": finished}
        with self._write("recording the run's state") as connection:
            connection.execute(sa.update(runs).where(runs.c.id == run_id).values(values))

    def take_over(self, run_id: str, executor: str, *, expected: str | None) -> bool:
        """Make ``executor`` the owner of a run that ``expected`` owned; False when someone else was faster.

        Executions left open are marked lost and their attempts pending again. Whether the old owner is really dead
        is the caller's to know (``engine.lease``).
        """
        theirs = sa.select(attempts.c.id).where(attempts.c.run == run_id)
        with self._write("taking over the run") as connection:
            owned = connection.execute(
                sa.update(runs)
                .where(runs.c.id == run_id, runs.c.executor.is_not_distinct_from(expected))
                .values(executor=executor, state=RunState.RUNNING.value, reason=None, finished_at=None)
            ).rowcount
            if not owned:
                return False
            connection.execute(
                sa.update(attempts)
                .where(attempts.c.run == run_id, attempts.c.state == AttemptState.RUNNING.value)
                .values(state=AttemptState.PENDING.value)
            )
            connection.execute(_lose(executions.c.attempt.in_(theirs)))
            return True

    # attempts and executions

    def attempt(self, attempt_id: str) -> Attempt:
        """One attempt. Raises UsageError when there is none."""
        with self._read("reading the attempt") as connection:
            row = connection.execute(sa.select(attempts).where(attempts.c.id == attempt_id)).mappings().one_or_none()
        if row is None:
            raise UsageError(f"no attempt '{attempt_id}'", field="attempt", remedy="'woodshed show RUN' lists them.")
        return rows.attempt(row)

    def attempts(
        self, run_id: str, state: AttemptState | None = None, *, group: tuple[str, str] | None = None
    ) -> list[Attempt]:
        """The attempts of a run in planned order; those in ``state``, or of one ``group`` (task, agent), or all."""
        query = sa.select(attempts).where(attempts.c.run == run_id).order_by(attempts.c.number)
        if state is not None:
            query = query.where(attempts.c.state == state.value)
        if group is not None:
            query = query.where(attempts.c.task == group[0], attempts.c.agent == group[1])
        with self._read("reading attempts") as connection:
            return [rows.attempt(row) for row in connection.execute(query).mappings()]

    def executions(self, attempt_id: str) -> list[Execution]:
        """Every execution of an attempt, oldest first, the lost ones too."""
        query = sa.select(executions).where(executions.c.attempt == attempt_id).order_by(executions.c.number)
        with self._read("reading executions") as connection:
            return [
                rows.record(Execution, f"execution {row['number']} of {attempt_id}", row, texts=("outcome",),
                            without=("project",))
                for row in connection.execute(query).mappings()
            ]

    def last_verdicts(self, run_id: str, since: datetime, most: int) -> list[Verdict]:
        """Of the executions of a run that ended since then by themselves, the last ones; oldest first."""
        ended = (ExecutionState.DONE.value, ExecutionState.SET_ASIDE.value)
        query = (
            sa.select(executions.c.outcome).join(attempts, attempts.c.id == executions.c.attempt)
            .where(attempts.c.run == run_id, executions.c.state.in_(ended), executions.c.outcome.is_not(None))
            .where(executions.c.finished_at >= stamp(since)).order_by(executions.c.finished_at.desc()).limit(most)
        )
        with self._read("reading executions") as connection:
            found = connection.execute(query).scalars().all()
        return [rows.outcome(f"an execution of {run_id}", text).verdict for text in reversed(found)]

    def begin_execution(self, attempt_id: str, executor: str, *, claimed: bool = False) -> int | None:
        """Open a new execution and return its number; None when the attempt is done and nothing is left to do.

        Older executions still open are marked lost; their events stay. Raises UsageError for an unknown attempt, and,
        where it must be ``claimed``, Cancelled when it is no longer this worker's.
        """
        at = stamp(now())
        with self._write("beginning an execution") as connection:
            if claimed and not self.queue.holds(connection, attempt_id, executor):
                raise Cancelled(f"{attempt_id} is no longer this worker's")
            row = connection.execute(_BEGIN_READ, {"this": attempt_id}).one_or_none()
            if row is None:
                raise UsageError(f"no attempt '{attempt_id}'", field="attempt")
            if row.state == AttemptState.DONE.value:
                return None
            number = int(row.executions) + 1
            if number > 1:
                connection.execute(_lose(executions.c.attempt == attempt_id))
            connection.execute(_OPEN, {
                "attempt": attempt_id, "number": number, "project": row.project, "executor": executor,
                "state": ExecutionState.OPEN.value, "started_at": at,
            })
            connection.execute(_BEGIN_WRITE, {"this": attempt_id, "newest": number, "now": at})
            return number

    def finish_attempt(
        self, attempt_id: str, execution: int, outcome: Outcome, facts: Sequence[Event | Mapping[str, Any]] = (), *,
        worker: str | None = None,
    ) -> bool:
        """Count this outcome as the attempt's, with the execution's last events, in one transaction.

        False when it is fenced: a newer execution has begun or the attempt is done. The late outcome then stays on
        the execution's row as evidence and is never counted. One that counts also leaves the queue, where it is
        the ``worker``'s there; the queue's row is locked before the attempt's, as by whoever reaps.
        """
        text, at = dump(outcome), stamp(now())
        with self._write("recording a result") as connection:
            held = worker is not None and self.queue.holds(connection, attempt_id, worker, to_change=True)
            appending.append(connection, facts)
            counted = connection.execute(
                _FINISH, {"this": attempt_id, "fence": execution, "result": text, "now": at}
            ).rowcount == 1
            if counted:
                groups.counted(connection, attempt_id)
                if held:
                    self.queue.remove(connection, attempt_id)
            state = ExecutionState.DONE if counted else ExecutionState.FENCED
            _close(connection, attempt_id, execution, state, text, at)
            return counted

    def set_aside(
        self, attempt_id: str, execution: int, outcome: Outcome, facts: Sequence[Event | Mapping[str, Any]] = ()
    ) -> None:
        """Close an execution whose outcome is not to count, and leave the attempt pending: it will be tried again."""
        with self._write("setting a result aside") as connection:
            appending.append(connection, facts)
            connection.execute(
                sa.update(attempts)
                .where(attempts.c.id == attempt_id, attempts.c.executions == execution)
                .where(attempts.c.state == AttemptState.RUNNING.value)
                .values(state=AttemptState.PENDING.value)
            )
            _close(connection, attempt_id, execution, ExecutionState.SET_ASIDE, dump(outcome), stamp(now()))

    # events

    def append(self, facts: Sequence[Event | Mapping[str, Any]], *, newest: tuple[str, int] | None = None) -> None:
        """Add events (or rows that ``store.rows`` made of some) in one transaction. There is no way to change one.

        Raises StoreFault when one of the same (attempt, execution, seq) is there already; then none is added. Nor where
        ``newest`` (attempt, execution) is not the attempt's newest execution any more: Cancelled then.
        """
        if facts or newest is not None:
            with self._write("appending events") as connection:
                if newest is not None and appending.newest(connection, newest[:1]).get(newest[0]) != newest[1]:
                    raise Cancelled(f"a newer execution of {newest[0]} has begun")
                appending.append(connection, facts)

    def append_all(self, parts: Sequence[tuple[tuple[str, int], Sequence[Mapping[str, Any]]]]) -> list[bool]:
        """Add rows of several (attempt, execution) in one transaction: of those that are their attempt's newest.

        Which ones were; of others nothing is added. Raises StoreFault; then nothing at all is.
        """
        with self._write("appending events") as connection:
            newest = appending.newest(connection, [attempt for (attempt, _), _ in parts])
            counts = [newest.get(attempt) == execution for (attempt, execution), _ in parts]
            appending.append(connection, [
                fact for (_, facts), one in zip(parts, counts, strict=True) if one for fact in facts])
        return counts

    def events(self, attempt_id: str, execution: int | None = None) -> list[Event]:
        """Events of an attempt in the order they happened; of one execution, or of all."""
        query = sa.select(events).where(events.c.attempt == attempt_id).order_by(events.c.execution, events.c.seq)
        if execution is not None:
            query = query.where(events.c.execution == execution)
        with self._read("reading events") as connection:
            return [rows.event(row) for row in connection.execute(query).mappings()]

    # regrades

    def add_regrade(self, regrade: Regrade, verdicts: Sequence[Regraded]) -> None:
        """Write a regrade and what it made of each attempt, together; nothing that stands is touched.

        Raises StoreFault if the id is taken.
        """
        with self._write("recording the regrade") as connection:
            connection.execute(sa.insert(regrades), rows.regrade_row(regrade))
            if verdicts:
                connection.execute(sa.insert(regraded), [rows.regraded_row(regrade, verdict) for verdict in verdicts])

    def regrades(self, run_id: str) -> list[Regrade]:
        """The regrades of a run, oldest first."""
        query = sa.select(regrades).where(regrades.c.run == run_id).order_by(regrades.c.created_at, regrades.c.id)
        with self._read("reading regrades") as connection:
            return [rows.regrade(row) for row in connection.execute(query).mappings()]

    def regraded(self, regrade_id: str) -> list[Regraded]:
        """What a regrade made of each attempt, in planned order; empty for an unknown one."""
        query = (sa.select(regraded).join(attempts, attempts.c.id == regraded.c.attempt)
                 .where(regraded.c.regrade == regrade_id).order_by(attempts.c.number))
        with self._read("reading a regrade") as connection:
            return [rows.regraded(row) for row in connection.execute(query).mappings()]

    @property
    def identity(self) -> str:
        """What names this database to those who share blobs."""
        return references.identity(self._engine)

    def named(self, among: set[str]) -> set[str]:
        """Those of these blobs' digests that any record names. Reads the whole database."""
        with self._read("looking for what is named") as connection:
            return references.named(connection, among)

    @contextmanager
    def _write(self, doing: str) -> Iterator[sa.Connection]:
        with faults(self._engine, doing), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _read(self, doing: str) -> Iterator[sa.Connection]:
        with faults(self._engine, doing), self._engine.connect().execution_options(**READS) as connection:
            yield connection


_BEGIN_READ = (
    sa.select(attempts.c.state, attempts.c.executions, attempts.c.project)
    .where(attempts.c.id == sa.bindparam("this", type_=sa.String))
    .with_for_update()
)
_BEGIN_WRITE = (
    sa.update(attempts)
    .where(attempts.c.id == sa.bindparam("this", type_=sa.String))
    .values(
        state=AttemptState.RUNNING.value,
        executions=sa.bindparam("newest", type_=sa.Integer),
        started_at=sa.func.coalesce(attempts.c.started_at, sa.bindparam("now", type_=sa.String)),
    )
)
_FINISH = (
    sa.update(attempts)
    .where(attempts.c.id == sa.bindparam("this", type_=sa.String))
    .where(attempts.c.executions == sa.bindparam("fence", type_=sa.Integer))
    .where(attempts.c.state == AttemptState.RUNNING.value)
    .values(
        state=AttemptState.DONE.value,
        outcome=sa.bindparam("result", type_=sa.Text),
        finished_at=sa.bindparam("now", type_=sa.String),
    )
)
_OPEN = sa.insert(executions)
_CLOSE = (
    sa.update(executions)
    .where(executions.c.attempt == sa.bindparam("this", type_=sa.String))
    .where(executions.c.number == sa.bindparam("which", type_=sa.Integer))
    .where(executions.c.outcome.is_(None))  # only once: an execution that has an outcome keeps it
    .values(
        state=sa.bindparam("how", type_=sa.String),
        outcome=sa.bindparam("result", type_=sa.Text),
        finished_at=sa.bindparam("now", type_=sa.String),
    )
)


def _create(connection: sa.Connection, run: Run, planned: Sequence[Attempt]) -> None:
    connection.execute(sa.insert(runs), rows.run_row(run))
    if planned:
        connection.execute(sa.insert(attempts), [rows.attempt_row(n, a) for n, a in enumerate(planned, 1)])
        groups.planned(connection, planned)


def _close(
    connection: sa.Connection, attempt_id: str, execution: int, state: ExecutionState, outcome: str, at: str
) -> None:
    connection.execute(
        _CLOSE, {"this": attempt_id, "which": execution, "how": state.value, "result": outcome, "now": at}
    )


def _lose(where: sa.ColumnElement[bool]) -> sa.Update:
    return (
        sa.update(executions)
        .where(where, executions.c.state == ExecutionState.OPEN.value)
        .values(state=ExecutionState.LOST.value, finished_at=stamp(now()))
    )
