"""Bursts in turns: every round measures everything once, in an order of its own, and begins each burst in quiet.

What drifts (clocks, caches, neighbours) harms all alike. Each burst throws its first sample away: it pays for caches
that the subject before filled with its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed.errors import WoodshedError
from woodshed.services.benching.subject import BURST, Subject

_QUIET_IDLE, _LOOK_S = 0.8, 0.1
"""Quiet is a tenth of a second in which the machine's processors were idle four fifths of the time, all together."""


@dataclass(slots=True)
class Samples:
    """Milliseconds of one measure of one subject; those of bursts that began in quiet apart."""

    wanted: int
    quiet: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """``p50``, ``p95``, ``n``: of the quiet samples alone where they are as many as were asked, else of all."""
        enough = len(self.quiet) >= self.wanted
        values = self.quiet if enough else self.quiet + self.other
        return {"p50": round(statistics.median(values), 3), "p95": round(quantile(values, 0.95), 3), "n": len(values),
                "quiet": enough}

    @property
    def values(self) -> list[float]:
        """All of them."""
        return self.quiet + self.other


class Quiet:
    """Waits for a quiet machine, ``patience_s`` seconds in all; with none it does not even look."""

    def __init__(self, patience_s: float) -> None:
        self._left_s = patience_s

    @property
    def hopeless(self) -> bool:
        """No patience is left: nothing will be quiet any more."""
        return self._left_s <= 0

    async def wait(self) -> bool:
        """Whether it is quiet now."""
        while not self.hopeless:
            began = time.monotonic()
            before = cpu_s()
            await asyncio.sleep(_LOOK_S)
            idle, busy = (after - earlier for after, earlier in zip(cpu_s(), before, strict=True))
            if idle >= _QUIET_IDLE * (idle + busy):
                return True
            self._left_s -= time.monotonic() - began
        return False


async def take(
    subjects: Sequence[Subject], *, samples: int, seed: int, quiet: Quiet, told: Callable[[str], None]
) -> dict[tuple[str, str], Samples]:
    """Measure all of ``subjects``; a measure that fails is dropped with the reason, whenever that happens.

    Goes on for up to as many rounds again while quiet samples are wanting.
    """
    order, taken = random.Random(seed), dict[tuple[str, str], Samples]()  # noqa: S311 (an order, no secret)
    rounds = -(-samples // BURST)
    for index in range(2 * rounds):
        turns = [(subject, measure) for subject in subjects for measure in subject.bursts]
        order.shuffle(turns)
        again, made = index >= rounds, 0
        if again and quiet.hopeless:
            break
        for subject, measure in turns:
            kept = taken.setdefault((subject.name, measure), Samples(max(1, round(samples * subject.share))))
            wanting = kept.wanted - len(kept.quiet if again else kept.values)
            if wanting > 0:
                await _burst(subject, measure, min(BURST, wanting), kept, quiet)
                made += 1
        if made == 0 and again:
            break
        told(f"round {index + 1}: {made} bursts")
    return {key: kept for key, kept in taken.items() if kept.values}


async def _burst(subject: Subject, measure: str, count: int, kept: Samples, quiet: Quiet) -> None:
    still = await quiet.wait()
    try:
        values = (await subject.bursts[measure](count + 1))[1:]
    except WoodshedError as error:
        subject.drop(measure, str(error))
        return
    (kept.quiet if still else kept.other).extend(values)


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile: the smallest value that at least ``share`` of them do not exceed."""
    return sorted(values)[max(0, -(-len(values) * round(share * 1000) // 1000) - 1)]


def cpu_s() -> tuple[float, float]:
    """Seconds that the machine's processors were idle, and busy, since it started: /proc/stat of proc_stat(5)."""
    fields = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    tick = os.sysconf("SC_CLK_TCK")
    idle = fields[3] + fields[4]
    return idle / tick, (sum(fields) - idle) / tick
