"""Firing: a worker's part in schedules. Of all workers one looks at a time, and no harm is done where two do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime

from woodshed.engine import timetable, watch
from woodshed.errors import StoreFault, UsageError
from woodshed.model.schedule import (
    MOST_WAITING,
    Files,
    Firing,
    FiringState,
    Missed,
    Schedule,
    ScheduleState,
)
from woodshed.services import scheduling
from woodshed.services.home import Home
from woodshed.services.scheduling import Tell

LEASE_S = 5.0
"""When the worker that sees to the schedules dies, another does after so long."""
_SHARE = 20
"""A folder is looked at again after so many times as long as looking took: on a slow disk, less often."""


class Scheduler:
    """Sees to all schedules, as ``executor``. ``clock`` tells the time (the store's), ``steady`` seconds that pass."""

    def __init__(
        self, home: Home, executor: str, tell: Tell, *, clock: Callable[[], datetime] | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.home, self.executor, self.tell = home, executor, tell
        self.rows = home.store.schedules
        self._clock, self._steady = clock or self.rows.now, steady
        self._watches: dict[str, watch.Watch] = {}
        self._look_at: dict[str, float] = {}
        self._broken: dict[str, float] = {}
        self._told: set[tuple[str, str]] = set()
        self._renewed = 0.0
        self._halted = threading.Event()

    def tick(self) -> None:
        """Record what is due, and submit the runs of what was recorded. Blocks; raises StoreFault."""
        self._renewed = time.monotonic()
        if not self.rows.lease(self.executor, LEASE_S):
            self._watches.clear()
            return
        found = self.rows.all(active=True)
        for known in (self._watches, self._look_at, self._broken):
            for gone in known.keys() - {schedule.id for schedule in found}:
                known.pop(gone)
        self._see_to([schedule for schedule in found if not isinstance(schedule.trigger, Files)], self._due)
        self._see_to([schedule for schedule in found if isinstance(schedule.trigger, Files)], self._look)

    def _see_to(self, found: list[Schedule], what: Callable[[Schedule], None]) -> None:
        for schedule in found:
            if not self._going():
                return
            try:
                what(schedule)
            except StoreFault:
                raise
            except UsageError as error:  # a folder that is gone, a time zone this machine does not know
                self._complain(schedule, str(error))
            except Exception as error:  # whatever a library may raise: no other schedule suffers, and no run
                self._complain(schedule, f"{type(error).__name__}: {error}")
            else:
                self._broken.pop(schedule.id, None)
        scheduling.settle(self.home, self.rows.unsettled(), self.tell, self._going)

    def _going(self) -> bool:
        """Whether to go on; what takes long keeps the lease meanwhile."""
        if not self._halted.is_set() and time.monotonic() - self._renewed > LEASE_S / 4:
            self._renewed = time.monotonic()
            self.rows.lease(self.executor, LEASE_S)
        return not self._halted.is_set()

    def halt(self) -> None:
        """A tick that runs ends soon; what it leaves is whoever's that looks next."""
        self._halted.set()

    def leave(self) -> None:
        """Another worker may look at once. Raises StoreFault."""
        self.rows.release(self.executor)

    def _due(self, schedule: Schedule) -> None:
        most = timetable.MOST
        if schedule.missed is Missed.ALL:  # what cannot wait in line yet is not lost: it is due the next time
            most = MOST_WAITING - self.rows.tally(schedule.id).get(FiringState.PENDING.value, 0)
        if most <= 0:
            return
        due = timetable.due(schedule, self._clock(), most)
        if due.cursor != schedule.cursor:
            self.rows.advance(schedule, due.firings, due.cursor, ended=due.ended)

    def _look(self, schedule: Schedule) -> None:
        assert isinstance(schedule.trigger, Files)
        began = self._steady()
        if began < self._look_at.get(schedule.id, began):
            return
        watched = self._watches.setdefault(schedule.id, watch.Watch(schedule.trigger, self._steady, self._going))
        traces = watched.look()
        for path in watched.too_large():
            if (schedule.id, path) not in self._told:
                self._told.add((schedule.id, path))
                self.tell(f"schedule {schedule.name}: {path} is too large to be read, and does not fire")
        self._look_at[schedule.id] = began + _SHARE * (self._steady() - began)
        known = self.rows.known(schedule.id, [trace.sha256 for trace in traces])
        new = tuple(trace for trace in traces if trace.sha256 not in known)
        if new:
            at = self._clock()
            self.rows.fire(schedule, Firing(schedule=schedule.id, due=at, by="files", files=new, created_at=at))
        watched.took(traces)

    def _complain(self, schedule: Schedule, error: str) -> None:
        """Say what is wrong, once; what stays wrong for longer than the schedule's grace pauses it."""
        at = self._steady()
        if schedule.id not in self._broken:
            self._broken[schedule.id] = at
            self.tell(f"schedule {schedule.name}: {error}")
        elif at - self._broken[schedule.id] > schedule.grace_s:
            due = self._clock()
            self.rows.fire(schedule, Firing(
                schedule=schedule.id, due=due, state=FiringState.FAILED, created_at=due, settled_at=due, reason=error,
                by="files" if isinstance(schedule.trigger, Files) else "time"))
            self.rows.turn(schedule.id, ScheduleState.PAUSED, error)
            self.tell(f"schedule {schedule.name} is paused: {error}")
