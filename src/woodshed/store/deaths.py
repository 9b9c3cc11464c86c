"""Deaths of workers: what they had is free again, and which of it may be what killed them.

An attempt that was at work at two deaths of its worker is suspect, and runs alone from then on. A death tells nothing
of what was at work where its reason is known to be another one: the worker had been told to end (who drains is killed
when patience is over), or its whole machine went down with it, as the machine's boot id shows. Where only others of the
cluster are left to find a worker silent, that shows when the machine is back: its next worker takes the blame away.
"""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa

from woodshed.model import AttemptState, EventKind
from woodshed.model.event import now
from woodshed.store.tables import attempts, events, executions, queued, workers
from woodshed.store.text import stamp

SUSPECT = 2
"""An attempt that was running at so many deaths of a worker goes into quarantine."""
MAIN, QUARANTINE = "main", "quarantine"
_BOOT = Path("/proc/sys/kernel/random/boot_id")

_NEWEST = sa.and_(events.c.attempt == attempts.c.id, events.c.execution == attempts.c.executions)
_FURTHER = sa.select(attempts.c.id).where(
    sa.exists(sa.select(1).where(_NEWEST, events.c.kind == EventKind.RESUME.value)),
    sa.exists(sa.select(1).where(
        _NEWEST, events.c.kind.in_([EventKind.MODEL_RESULT.value, EventKind.TOOL_RESULT.value]))),
)
"""Attempts whose newest execution went on with an earlier one and got further: not what kills workers at one place."""


def boot() -> str:
    """What names this machine's time since it started; empty where the kernel does not tell."""
    with suppress(OSError):
        return _BOOT.read_text().strip()
    return ""


def bury(connection: sa.Connection, executor: str) -> tuple[list[str], tuple[str, ...]]:
    """The worker is gone: what it had, free again, and which of it is suspect."""
    worker = connection.execute(sa.select(workers).where(workers.c.executor == executor)).one()
    rebooted = worker.host == platform.node() and worker.boot not in ("", boot())
    blamed = worker.state != "draining" and not rebooted
    gone = {"state": "gone"} if blamed else {"state": "gone", "boot": ""}  # nothing is to be taken back of it
    connection.execute(sa.update(workers).where(workers.c.executor == executor).values(gone))
    had = release(connection, executor, deaths=int(blamed))
    if not had or not blamed:
        return had, ()
    further = list(connection.execute(_FURTHER.where(attempts.c.id.in_(had))).scalars())
    if further:
        connection.execute(sa.update(queued).where(queued.c.attempt.in_(further)).values(deaths=1, lane=MAIN))
    suspects = sa.select(queued.c.attempt).where(queued.c.attempt.in_(had), queued.c.deaths >= SUSPECT)
    found = tuple(connection.execute(suspects).scalars())
    if found:
        connection.execute(sa.update(queued).where(queued.c.attempt.in_(found)).values(lane=QUARANTINE))
    return had, found


def release(connection: sa.Connection, executor: str, *, deaths: int) -> list[str]:
    """What the worker had is free again; so many deaths more are counted of it."""
    had = list(connection.execute(sa.select(queued.c.attempt).where(queued.c.worker == executor)).scalars())
    if had:
        connection.execute(sa.update(queued).where(queued.c.attempt.in_(had)).values(
            worker=None, claimed_at=None, delayed_at=None, delayed_until=None, deaths=queued.c.deaths + deaths))
        connection.execute(sa.update(executions).where(executions.c.attempt.in_(had), executions.c.state == "open")
                           .values(state="lost", finished_at=stamp(now())))
        connection.execute(sa.update(attempts).where(attempts.c.id.in_(had))
                           .where(attempts.c.state == AttemptState.RUNNING.value)
                           .values(state=AttemptState.PENDING.value))
    return had


def pardon(connection: sa.Connection, host: str) -> None:
    """This machine was started anew: the deaths of its workers before that were its own, and not their attempts'."""
    before = connection.execute(
        sa.select(workers.c.executor).where(workers.c.host == host, workers.c.state == "gone")
        .where(workers.c.boot != "", workers.c.boot != boot())).scalars().all()
    if not before or not boot():
        return
    for executor in before:
        lost = sa.select(executions.c.attempt).where(executions.c.executor == executor, executions.c.state == "lost")
        connection.execute(sa.update(queued).where(queued.c.attempt.in_(lost), queued.c.deaths > 0)
                           .values(deaths=queued.c.deaths - 1))
    lost = sa.select(executions.c.attempt).where(executions.c.executor.in_(before), executions.c.state == "lost")
    connection.execute(
        sa.update(queued).where(queued.c.attempt.in_(lost), queued.c.deaths < SUSPECT, queued.c.worker.is_(None))
        .values(lane=MAIN))
    connection.execute(sa.update(workers).where(workers.c.executor.in_(before)).values(boot=""))


def forget(connection: sa.Connection, clock_s: float, skew_s: float, after_s: float) -> int:
    """Rows of workers that are gone for so long, or since before the machine started, are deleted; how many."""
    old = sa.or_(workers.c.beat < clock_s - after_s, workers.c.beat > clock_s + skew_s)
    return connection.execute(sa.delete(workers).where(workers.c.state == "gone", old)).rowcount
