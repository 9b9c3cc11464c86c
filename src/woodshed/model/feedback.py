"""Feedback: what a person said while an agent worked, and what is then expected of it."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from woodshed.model.record import Record


class Expectation(Record):
    """What is to be seen in the calls after it was said. What is given must hold together.

    ``tool``, ``command`` and ``path`` are wanted of one call among the next ``within``: its tool's name, a regular
    expression over its command or arguments, a file that it names. With ``not_`` before, no later call is to have it.
    """

    tool: str | None = None
    command: str | None = Field(default=None, max_length=500)
    path: str | None = Field(default=None, min_length=1)
    not_tool: str | None = None
    not_command: str | None = Field(default=None, max_length=500)
    not_path: str | None = Field(default=None, min_length=1)
    within: int = Field(default=5, ge=1)

    @field_validator("command", "not_command")
    @classmethod
    def _regular(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except (re.error, RecursionError) as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return pattern

    @property
    def wanted(self) -> dict[str, str]:
        """What one of the next calls is to have."""
        given = {"tool": self.tool, "command": self.command, "path": self.path}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def unwanted(self) -> dict[str, str]:
        """What no later call is to have."""
        given = {"tool": self.not_tool, "command": self.not_command, "path": self.not_path}
        return {name: value for name, value in given.items() if value is not None}

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.wanted and not self.unwanted:
            raise ValueError("expects nothing; name a tool, a command or a path, with or without not_")
        return self


class Feedback(Record):
    """Data of an event ``feedback``: what was ``said``, after how many of the agent's turns, and what is expected.

    Without ``expects`` it is told, and scores nothing.
    """

    said: str
    step: int = Field(ge=0, description="turns of the agent before it was said")
    expects: Expectation | None = None
