"""Fork: where the attempts of a run branch off an earlier attempt."""

from __future__ import annotations

from pydantic import Field

from woodshed.model.record import Record


class ForkSpec(Record):
    """All attempts of a run go on from one state: that of ``attempt`` after its first ``step`` steps.

    ``say`` is told to the agent then. ``diverged``: go on even where the state could not be made again exactly.
    """

    attempt: str
    execution: int = Field(ge=1)
    step: int = Field(ge=0)
    say: str | None = Field(default=None, min_length=1)
    diverged: bool = False
