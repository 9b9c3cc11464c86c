"""EventLog: the one writer of an execution's events.

Events are kept in memory and written in few transactions: with the result at the end; on :meth:`EventLog.flush`; and,
so that a killed process loses little and a running attempt can be watched, with any event that comes a second after the
last write or that fills the buffer. A short attempt costs two transactions: its beginning, and its result with its
events. Where each fact must stand before the next thing happens (fine durability), :meth:`EventLog.keep` commits it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from woodshed.errors import StoreFault
from woodshed.model import Event, EventKind, Outcome
from woodshed.model.event import now
from woodshed.store.records import Store
from woodshed.store.text import dump_data, stamp

FLUSH_EVENTS = 256
FLUSH_BYTES = 4_000_000
FLUSH_AFTER_S = 1.0
_VERSION = Event.model_fields["version"].default


class EventLog:
    """Numbers, dates and keeps the events of one execution. ``emit`` is an :data:`woodshed.interfaces.Emit`.

    With the ``worker`` that has claimed the attempt, its result also takes it out of the queue.

    Safe to call from any thread. After a failed write the events stay in memory and go with the next one.
    """

    def __init__(self, store: Store, attempt: str, execution: int, *, worker: str | None = None) -> None:
        self.attempt, self.execution, self._worker = attempt, execution, worker
        self._store = store
        self._lock = threading.Lock()
        self._waiting: list[dict[str, Any]] = []
        self._bytes = 0
        self._seq = 0
        self._written_at = time.monotonic()

    def emit(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        """Append one event. The data is copied now. Never raises: a failing store shows at ``flush`` or ``finish``."""
        text = dump_data(data)
        with self._lock:
            self._waiting.append({
                "attempt": self.attempt, "execution": self.execution, "seq": self._seq, "version": _VERSION,
                "kind": kind.value, "at": stamp(now()), "data": text,
            })
            self._seq += 1
            self._bytes += len(text)
            due = time.monotonic() - self._written_at > FLUSH_AFTER_S
            if due or len(self._waiting) >= FLUSH_EVENTS or self._bytes >= FLUSH_BYTES:
                self._written_at = time.monotonic()  # also after a failure: the next try comes a second later
                with suppress(StoreFault):
                    self._write()

    def flush(self) -> None:
        """Write what is waiting. Raises StoreFault; nothing is lost from memory then."""
        with self._lock:
            self._write()

    def keep(self) -> None:
        """Commit what is waiting, as long as this is the attempt's newest execution.

        Raises Cancelled where it is not: others go on with the attempt, and nothing more of it may be done here.
        Raises StoreFault; nothing is lost from memory then.
        """
        with self._lock:
            self._store.append(self._waiting, newest=(self.attempt, self.execution))
            self._clear()

    def finish(self, outcome: Outcome) -> bool:
        """Write what is waiting and the result together: ``Store.finish_attempt``. False when fenced."""
        with self._lock:
            counted = self._store.finish_attempt(self.attempt, self.execution, outcome, self._waiting,
                                                 worker=self._worker)
            self._clear()
            return counted

    def set_aside(self, outcome: Outcome) -> None:
        """Write what is waiting and an outcome that is not to count: ``Store.set_aside``."""
        with self._lock:
            self._store.set_aside(self.attempt, self.execution, outcome, self._waiting)
            self._clear()

    def _write(self) -> None:
        self._store.append(self._waiting)
        self._clear()

    def _clear(self) -> None:
        self._waiting = []
        self._bytes = 0
        self._written_at = time.monotonic()
