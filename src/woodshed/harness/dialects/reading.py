"""What a dialect makes of an answer, and what every dialect can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from woodshed.harness.dialects.families import Family
from woodshed.interfaces import ModelResponse, ToolSpec
from woodshed.model import ToolCall
from woodshed.model.exchange import ChatFormat


@dataclass(frozen=True, slots=True)
class Reading:
    """The calls in an answer. ``native``: the server parsed them, so results go back as ``tool`` messages.

    Without calls, ``done`` says that the model declared the end, and ``complaint`` what to tell it otherwise.
    """

    calls: tuple[ToolCall, ...] = ()
    native: bool = False
    done: bool = False
    complaint: str = ""
    note: str = ""
    family: Family | None = None
    """In whose format the calls were written, and are answered."""
    attempted: bool = False
    """Something was to be a call and is none: that is no end, whatever was done before."""
    said: str = ""
    """The words beside calls in a family's format."""


class Dialect(Protocol):
    """How tool calls are written. ``fallback`` takes over when the server refuses the first request.

    ``chat`` is how the whole conversation is written, for an endpoint of raw completions; None for any other.
    """

    name: str
    chat: ChatFormat | None
    prose_finishes: bool
    fallback: Dialect | None

    def offers(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """The tools to send in the request."""

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """What the system prompt says about acting."""

    def read(self, response: ModelResponse, tools: Sequence[ToolSpec] = ()) -> Reading:
        """The answer's calls to ``tools``, in order. Ids are provisional. Never raises."""
