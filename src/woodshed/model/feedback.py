"""Feedback: what a person said while an agent worked, and what is then expected of it; and what a task has them say."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from woodshed.model.record import Record


def regular(pattern: str | None) -> str | None:
    """``pattern`` itself. Raises ValueError where it is no regular expression."""
    try:
        re.compile(pattern or "")
    except (re.error, RecursionError) as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return pattern


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
        return regular(pattern)

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


class Cue(Record):
    """When something is said: between two turns, once all that is given here holds.

    ``turn``: so many turns are over, at least. ``edits``: a file of this glob pattern was written, as far as the calls
    tell; ``command``: a call was made whose command or arguments match this regular expression; ``tool``: one of this
    tool. ``finish``: the agent said that it is done. Of the sandbox's state: ``file`` is there (and has what matches
    ``contains``); the command ``check`` ends with ``exit_code``.
    """

    turn: int | None = Field(default=None, ge=1)
    edits: str | None = Field(default=None, min_length=1, max_length=500)
    command: str | None = Field(default=None, min_length=1, max_length=500)
    tool: str | None = Field(default=None, min_length=1)
    finish: bool = False
    file: str | None = Field(default=None, min_length=1, max_length=1000)
    contains: str | None = Field(default=None, min_length=1, max_length=500)
    check: str | None = Field(default=None, min_length=1, max_length=10_000)
    exit_code: int = Field(default=0, ge=0, le=255)

    @field_validator("command", "contains")
    @classmethod
    def _regular(cls, pattern: str | None) -> str | None:
        return regular(pattern)

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_fields_set - {"contains", "exit_code"}:
            raise ValueError("says no time; name a turn, edits, a command, a tool, finish, a file or a check")
        if self.contains is not None and self.file is None:
            raise ValueError("contains says what a file has; name the file")
        if "exit_code" in self.model_fields_set and self.check is None:
            raise ValueError("exit_code is that of a check; name its command")
        return self


class Remark(Record):
    """``[[woodshed.feedback]]``: what the task's simulated person says, once, and what is then expected.

    Of several steps it is said in the one that ``step`` names, else once in each; turns are counted in that step.
    """

    step: str | None = None
    says: str = Field(min_length=1, max_length=20_000)
    when: Cue
    expects: Expectation | None = None


class Feedback(Record):
    """Data of an event ``feedback``: what was ``said``, after how many of the agent's turns, and what is expected.

    Without ``expects`` it is told, and scores nothing.
    """

    said: str
    step: int = Field(ge=0, description="turns of the agent before it was said")
    expects: Expectation | None = None
