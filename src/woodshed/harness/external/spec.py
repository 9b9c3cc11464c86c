"""ExternalAgent: a program of others that is an agent, as data. ``docs/external.md`` explains every field."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field, field_validator

from woodshed.model import Program, Record, StopReason

PLACES = ("instruction", "instruction_file", "model", "base_url", "bin", "home", "workdir", "key")
"""What stands in braces in a command, a variable or a file. ``{key}`` only in the latter two: a command line is shown
to whoever lists processes, and recorded."""
_PLACE = re.compile(r"\{(" + "|".join(PLACES) + r")\}")


class ExternalAgent(Record):
    """How an agent is installed, started and understood.

    ``command`` is an argv, never given to a shell. ``files`` are written before it starts, in the agent's home unless
    absolute. ``exit_codes`` say what ended it: 0 is ``finished``, any other that is not named ``exited``.
    ``result_code`` finds the exit code in a tool's result; ``action`` finds the command in an answer of a model that
    calls no tools: the user's message after it is then its result. ``litter`` is what it leaves in the working folder
    and nobody asked for, removed at the end where it was not there before. ``trajectory`` is its own account, a file in
    its home unless absolute: the record keeps its beginning and end.
    """

    name: str = Field(pattern="^[a-z0-9][a-z0-9._-]{0,63}$")
    command: tuple[str, ...] = Field(min_length=1)
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    needs_model: bool = True
    exit_codes: dict[int, StopReason] = {}
    result_code: str | None = None
    action: str | None = None
    litter: tuple[str, ...] = ()
    trajectory: str | None = None
    grace_s: float = Field(default=20.0, ge=0, description="to end by itself once a limit was reached")

    @field_validator("command")
    @classmethod
    def _no_key(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if any("{key}" in word for word in command):
            raise ValueError("{key} may stand in env and files, not in a command line, which anybody may read")
        return command

    @field_validator("result_code", "action")
    @classmethod
    def _one_group(cls, pattern: str | None) -> str | None:
        try:
            groups = 1 if pattern is None else re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None
        if groups != 1:
            raise ValueError("must have exactly one group: what it finds")
        return pattern

    @field_validator("litter")
    @classmethod
    def _inside(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not path or path.startswith("/") or ".." in path.split("/"):
                raise ValueError(f"{path!r} is not below the working folder")
        return paths

    @property
    def program(self) -> Program | None:
        """What must stand in the sandbox; None for an agent that the task or the image brings."""
        if not self.pip and not self.npm:
            return None
        return Program(name=self.name, pip=self.pip, npm=self.npm, without=self.without)


def filled(text: str, values: Mapping[str, str]) -> str:
    """``text`` with each place in braces replaced, once: what was filled in is not looked at again."""
    return _PLACE.sub(lambda found: values[found[1]], text)
