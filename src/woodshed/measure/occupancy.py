"""Occupancy: how much of a slot an execution really took, from when executions began and ended. Pure arithmetic.

Between the first beginning of a run and its last one something always waited, so every slot was in use. What the slots
had of seconds then, by the seconds that executions stood open, is what one such second takes of a slot: below 1 where
executions begin before they have a slot (their sandbox opens ahead), above 1 where slots stand empty between two.
"""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[float, float]
"""When an execution began and ended, in seconds on one clock."""

_SOUND = (0.3, 3.0)
"""Outside of these the run was interrupted, or its slots changed: then nothing is known."""


def most_at_once(spans: Sequence[Span]) -> int:
    """How many stood open together at most; one that begins as another ends is not together with it."""
    turns = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    most = now = 0
    for _, step in turns:
        now += step
        most = max(most, now)
    return most


def of_a_slot(spans: Sequence[Span], slots: int) -> float:
    """Seconds of a slot that one second of an open execution takes; 1.0 where too few began to tell (see the module).

    ``slots`` is how many the run had throughout.
    """
    if slots < 1 or len(spans) < 3 * slots:
        return 1.0
    begins = [begin for begin, _ in spans]
    first, last = min(begins), max(begins)
    stood = sum(max(0.0, min(end, last) - begin) for begin, end in spans)
    if last <= first or stood <= 0:
        return 1.0
    found = slots * (last - first) / stood
    return found if _SOUND[0] <= found <= _SOUND[1] else 1.0
