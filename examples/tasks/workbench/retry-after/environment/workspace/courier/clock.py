"""The time, as the client sees it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time and waits."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
