"""Process measures as records: a figure about how an attempt went, with the steps that brought it down."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field

from woodshed.model.record import Record


class Dimension(StrEnum):
    """What a measure speaks of. The first four are judged of any agent; the rest come from coding."""

    RELIABILITY = "command_reliability"
    SATISFACTION = "user_satisfaction"
    CONTROLLABILITY = "controllability"
    CONFIRMED = "confirmed_success"
    FOCUS = "focus"
    CRAFT = "craft"
    SAFETY = "safety"
    EFFORT = "effort"


class Citation(Record):
    """One step that brought a measure down. ``seq`` is its event, ``step`` as ``woodshed trace`` numbers steps.

    Both are None for what is no single step, such as a file of the final changes.
    """

    why: str
    seq: int | None = None
    step: int | None = None


class Measure(Record):
    """One figure. ``value`` is None where the measure does not apply or cannot be known; ``why`` says so.

    A ``share`` is from 0 to 1, and higher is better; counts, tokens, seconds and micros are not judged by themselves.
    """

    name: str
    dimension: Dimension
    value: float | None
    unit: Literal["share", "calls", "lines", "tokens", "seconds", "micros"] = "share"
    why: str = ""
    cited: tuple[Citation, ...] = ()


class Card(Record):
    """All measures of one attempt, and one score from 0 to 1 for each dimension (None where nothing of it applies)."""

    version: Literal[1] = 1
    measures: tuple[Measure, ...]
    scores: dict[Dimension, float | None]

    def named(self, name: str) -> Measure:
        """The measure of this name. Raises KeyError."""
        for measure in self.measures:
            if measure.name == name:
                return measure
        raise KeyError(name)


class Rating(Record):
    """What a person thought of an attempt: 1 (useless) to 5 (as wished)."""

    attempt: str
    stars: int = Field(ge=1, le=5)
    note: str = Field(default="", max_length=2000)
    by: str = Field(default="", max_length=200)
    at: datetime
