"""How much of an attempt survives the process that executes it, and how often its sandbox's files are kept."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from woodshed.model.record import Record


class Durability(StrEnum):
    """COARSE: an execution that was cut off begins anew. FINE: it goes on at the turn it had reached.

    With FINE every model call and tool call is committed to the store before it is made, and its result after it.
    """

    COARSE = "coarse"
    FINE = "fine"


class CheckpointRule(Record):
    """When the files of a fine attempt's sandbox are kept: after so many turns or minutes, whichever comes first.

    Whoever hands an attempt over (a worker that drains) keeps them as well, whatever the rule.
    """

    turns: int | None = Field(default=10, gt=0)
    minutes: float | None = Field(default=5.0, gt=0)

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.turns is None and self.minutes is None:
            raise ValueError("say turns, minutes or both")
        return self
