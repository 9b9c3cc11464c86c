"""Heart: says that a worker lives, from a thread that no busy event loop can starve."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from woodshed.errors import StoreFault
from woodshed.store.queue import Queue

BEAT_S = 1.0
SILENT_S = 10.0
"""Who has not beaten for so long is taken for dead."""

Heard = Callable[[list[str] | None], object]
"""Told of every beat, in the heart's thread: attempts to call off; None where the worker was reaped."""


class Heart:
    """Beats for ``executor`` until ``stop``. ``figures`` gives its slots and how many are busy.

    A beat that the database does not take is left out; the next one comes a second later.
    """

    def __init__(self, queue: Queue, executor: str, figures: Callable[[], tuple[int, int]], heard: Heard) -> None:
        self._queue, self._executor, self._figures, self._heard = queue, executor, figures, heard
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="woodshed-heart", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Beat no more; blocks for the beat that is under way. Idempotent."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(BEAT_S):
            slots, busy = self._figures()
            with suppress(StoreFault):
                self._heard(self._queue.beat(self._executor, slots=slots, busy=busy))
