"""PersonSpec: a person whom a model plays: what they want, how they are, when they are asked, and how long."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from woodshed.model.record import Record

Occasion = Literal["finish", "question", "turns"]
"""The agent said that it is done; it asked in words, and called nothing; so many of its turns are over."""


class PersonSpec(Record):
    """``[woodshed.person]``: who follows the agent's work and may speak to it, played by the run's person model.

    ``goal`` and ``character`` are told to that model alone. The person speaks ``times`` at the most, and all their
    calls together take ``tokens`` at the most, prompts included; then they are silent.
    """

    goal: str = Field(min_length=1, max_length=20_000, description="what they want, and know; hidden from the agent")
    character: str = Field(default="", max_length=4_000, description="how they are and speak; hidden likewise")
    when: tuple[Literal["finish", "question"], ...] = Field(
        default=("finish", "question"), description="they are asked when the agent says so, or asks")
    every: int | None = Field(default=None, ge=1, description="they are asked after so many turns, too")
    times: int = Field(default=5, ge=1, le=100, description="how often they speak")
    tokens: int = Field(default=50_000, ge=100, description="of all their calls, prompts included")
    answer_tokens: int = Field(default=300, ge=10, le=4_000, description="of one thing that they say")

    @model_validator(mode="after")
    def _sometime(self) -> Self:
        if not self.when and self.every is None:
            raise ValueError("is never asked; name an occasion in when, or every")
        return self
