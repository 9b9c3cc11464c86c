"""Heart: says that a worker lives, from a thread that no busy event loop can starve."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from woodshed.errors import StoreFault
from woodshed.store.queue import Beat, Queue

BEAT_S = 1.0
SILENT_S = 10.0
"""Who has not beaten for so long is taken for dead."""

_LATE_S = 3.0

Heard = Callable[[Beat | None], object]
"""Told of every beat, in the heart's thread: what to heed; None where the worker was reaped."""


class Heart:
    """Beats for ``executor`` until ``stop``. ``figures`` gives its slots and how many are busy.

    A beat that the database does not take is left out; the next one comes a second later.
    """

    def __init__(self, queue: Queue, executor: str, figures: Callable[[], tuple[int, int]], heard: Heard) -> None:
        self._queue, self._executor, self._figures, self._heard = queue, executor, figures, heard
        self._end = threading.Event()
        self._last = self._since = _clock()
        self._thread = threading.Thread(target=self._run, name="woodshed-heart", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Beat no more; blocks for the beat that is under way. Idempotent."""
        self._end.set()
        self._thread.join()

    def steady(self) -> bool:
        """Whether it has beaten for as long as others may be silent, without a gap.

        Else their silence says nothing: the machine may have slept, or the database been away, for all of them.
        """
        at = _clock()
        return at - self._last < _LATE_S and at - self._since > SILENT_S

    def _run(self) -> None:
        while not self._end.wait(BEAT_S):
            slots, busy = self._figures()
            with suppress(StoreFault):
                self._heard(self._queue.beat(self._executor, slots=slots, busy=busy))
                at = _clock()
                if at - self._last > _LATE_S:
                    self._since = at
                self._last = at


def _clock() -> float:
    """Seconds, those of the machine's sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
