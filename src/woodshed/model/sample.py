"""Sample: which of a run's tasks are to be tried, and, once they are drawn, everything that the draw followed from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from woodshed.model.record import Record

By = Literal["informative", "chance"]


class Sample(Record):
    """``count`` of the tasks named, each at most once: by how much a group is expected to teach, or all alike."""

    count: int = Field(ge=1, le=10_000)
    by: By = "informative"


class Drawn(Record):
    """A draw of ``count`` of ``among`` tasks, as it came out: ``tasks`` by id, in the order in which they were drawn.

    The same ``seed``, the same tasks and the same ``history`` draw the same. ``history`` is a digest of what was known
    of them then, from so many ``groups`` of attempts; ``size`` the attempts of a group, and ``worths`` what a group of
    each drawn task was expected to teach (0 to 1). By chance alone, nothing was asked of the past: those are empty.
    """

    count: int
    among: int
    by: By
    seed: int
    tasks: tuple[str, ...]
    size: int = 0
    groups: int = 0
    history: str | None = None
    worths: dict[str, float] = {}
