"""What a family's format is: how its models are told of tools, and how calls and their results are written and read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from woodshed.harness.dialects.shield import Shield
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ToolSpec
from woodshed.model import ToolCall, printable


@dataclass(frozen=True, slots=True)
class Words:
    """A part of an answer that is said, and stands among the calls."""

    text: str


Found = ToolCall | Words | str
"""A call (with ``error`` where its arguments are none), words, or in one sentence why something is no call."""


class Format(Protocol):
    """How calls are found. ``openers`` begin one wherever they stand, the signs of ``first`` only at the start."""

    @property
    def openers(self) -> tuple[str, ...]:
        """Marks that begin a call."""

    @property
    def first(self) -> str:
        """Signs that may begin one at the start."""

    @property
    def silent(self) -> bool:
        """Whether a body without calls has its words among the marks, and is none itself."""

    def read(self, body: str, types: Types) -> Iterator[Found]:
        """What an answer holds from its first call on. Never raises; nothing where that was no call.

        What follows a call that cannot be read is not asked for: it may be a part of it.
        """


class Family(Format, Protocol):
    """One family's format. ``shield`` hides its marks in what tools answer. Formats are stateless."""

    @property
    def name(self) -> str:
        """As a dialect."""

    @property
    def shield(self) -> Shield:
        """Of results."""

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """The part of the system prompt that tells of tools, in the words of the family's own template."""

    def write(self, said: str, calls: Sequence[ToolCall], types: Types) -> str:
        """An answer that says ``said`` and makes ``calls``: what :meth:`read` reads."""

    def around(self, call: ToolCall) -> tuple[str, str]:
        """What stands before and after the result of a call."""


def as_json(tool: ToolSpec) -> dict[str, Any]:
    """A tool as the families' templates are given it: the shape of chat completions."""
    return {"type": "function", "function": {"name": tool.name, "description": tool.description,
                                             "parameters": dict(tool.parameters)}}


def lines(tools: Sequence[ToolSpec]) -> str:
    """Each tool as JSON on a line."""
    return "\n".join(json.dumps(as_json(tool), ensure_ascii=False) for tool in tools)


def after(said: str, calls: str, between: str = "\n") -> str:
    """Words, and then calls."""
    return f"{said}{between}{calls}" if said and calls else said or calls


def broken(name: str, written: str, why: Exception) -> ToolCall:
    """A call that was meant and cannot be read."""
    return ToolCall(id="", name=printable(name), raw=printable(written), error=str(why))
