"""Used: what sandboxes took of a machine, by their own accounting."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pydantic import Field

from woodshed.model.record import Record


class Used(Record):
    """What ``sandboxes`` took. None where the machine cannot tell; 0 means that nothing was used.

    ``sandbox_s`` is the time they stood, opening and closing included, of each one alone. ``cpu_s`` is user and system
    seconds of everything in them but their first process. ``memory_peak_bytes`` and ``disk_bytes`` (what they had
    changed) are of the largest of them, not a sum: they tell what one slot needs.
    """

    sandboxes: int = Field(default=0, ge=0)
    sandbox_s: float = Field(default=0.0, ge=0)
    cpu_s: float | None = Field(default=0.0, ge=0)
    memory_peak_bytes: int | None = Field(default=None, ge=0)
    disk_bytes: int | None = Field(default=None, ge=0)

    def plus(self, more: Used) -> Used:
        """Both together: times add up, and are unknown where one of them is; peaks are the larger one known."""
        return Used(
            sandboxes=self.sandboxes + more.sandboxes, sandbox_s=self.sandbox_s + more.sandbox_s,
            cpu_s=None if self.cpu_s is None or more.cpu_s is None else self.cpu_s + more.cpu_s,
            memory_peak_bytes=larger(self.memory_peak_bytes, more.memory_peak_bytes),
            disk_bytes=larger(self.disk_bytes, more.disk_bytes),
        )


def total(parts: Iterable[Used]) -> Used:
    """All of them together."""
    return reduce(Used.plus, parts, Used())


def larger(one: int | None, other: int | None) -> int | None:
    """The larger one of those that are known."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
