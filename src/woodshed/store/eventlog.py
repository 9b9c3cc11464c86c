"""EventLog: the one writer of an execution's events.

Events are kept in memory and written in few transactions: with the result at the end; on :meth:`EventLog.flush`; and,
so that a killed process loses little and a running attempt can be watched, with any event that comes a second after the
last write or that fills the buffer. A short attempt costs two transactions: its beginning, and its result with its
events. Where each fact must stand before the next thing happens (fine durability), :meth:`EventLog.keep` commits it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from woodshed.errors import Cancelled, StoreFault
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
        self._lock, self._writing = threading.Lock(), threading.Lock()
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
            due = due or len(self._waiting) >= FLUSH_EVENTS or self._bytes >= FLUSH_BYTES
            due = due or (kind is EventKind.FEEDBACK and "message" in data)  # whoever sent it may look whether it came
        if due and self._writing.acquire(blocking=False):  # who writes already is not waited for
            try:
                with suppress(StoreFault), self._taken() as rows:
                    self._store.append(rows)
            finally:
                self._writing.release()

    def flush(self) -> None:
        """Write what is waiting. Raises StoreFault; nothing is lost from memory then."""
        with self._writing, self._taken() as rows:
            self._store.append(rows)

    def keep(self) -> None:
        """Commit what is waiting, as long as this is the attempt's newest execution.

        Raises Cancelled where it is not: others go on with the attempt, and nothing more of it may be done here.
        Raises StoreFault; nothing is lost from memory then.
        """
        with self._writing, self._taken() as rows:
            self._store.append(rows, newest=(self.attempt, self.execution))

    def finish(self, outcome: Outcome) -> bool:
        """Write what is waiting and the result together: ``Store.finish_attempt``. False when fenced."""
        with self._writing, self._taken() as rows:
            return self._store.finish_attempt(self.attempt, self.execution, outcome, rows, worker=self._worker)

    def set_aside(self, outcome: Outcome) -> None:
        """Write what is waiting and an outcome that is not to count: ``Store.set_aside``."""
        with self._writing, self._taken() as rows:
            self._store.set_aside(self.attempt, self.execution, outcome, rows)

    @contextmanager
    def _taken(self) -> Iterator[list[dict[str, Any]]]:
        """What is waiting, while it is written: others emit meanwhile. What could not be written waits again."""
        with self._lock:
            rows, self._waiting, self._bytes = self._waiting, [], 0
            self._written_at = time.monotonic()  # also of a failure: the next try comes a second later
        try:
            yield rows
        except BaseException:
            self._wait_again(rows)
            raise

    def _wait_again(self, rows: list[dict[str, Any]]) -> None:
        with self._lock:
            self._waiting[:0] = rows
            self._bytes += sum(len(row["data"]) for row in rows)


def keep_all(store: Store, logs: Sequence[EventLog]) -> list[Cancelled | None]:
    """As :meth:`EventLog.keep` of each, in one transaction; what it would raise of whom others go on with.

    Raises StoreFault; nothing is written then, and nothing is lost from memory. Each stands among ``logs`` once.
    """
    with ExitStack() as stack:
        for log in sorted(logs, key=id):  # in one order, whoever does this at the same time
            stack.enter_context(log._writing)
        parts = [((log.attempt, log.execution), stack.enter_context(log._taken())) for log in logs]
        told: list[Cancelled | None] = []
        for log, (_, rows), counts in zip(logs, parts, store.append_all(parts), strict=True):
            told.append(None if counts else Cancelled(f"a newer execution of {log.attempt} has begun"))
            if not counts:
                log._wait_again(rows)
        return told
