"""What goes to a model and what comes back, as all parts of an attempt see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from woodshed.model.tokens import Tokens
from woodshed.model.trajectory import Message, ToolCall


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it. ``parameters`` is a JSON schema of an object; ``strict`` binds the server to it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False


class ChatFormat(Protocol):
    """How a conversation is written as one text, for an endpoint of raw completions, which continues it.

    Pure: the same conversation is the same text. What a model said stands in it as the model wrote it, so that each
    prompt begins with the one before and its answer, wherever the family's format allows that. Marks of the format in
    what anybody else said are made harmless.
    """

    @property
    def name(self) -> str:
        """The family's."""

    @property
    def stops(self) -> tuple[str, ...]:
        """What ends an answer, and is no part of it."""

    @property
    def marks(self) -> tuple[str, ...]:
        """What only the format itself, and the model, may write: special tokens of its models among them."""

    @property
    def opened(self) -> str:
        """What every answer begins with, in the prompt already: it is a part of the answer."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """The conversation, up to where the next answer begins, ``opened`` included."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call: the conversation so far and the tools on offer. The gateway adds model, key and sampling."""

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    stop: Sequence[str] = ()
    max_tokens: int | None = None
    parent: str | None = None
    """The id of the tool call that delegated to this conversation: recorded, and not sent."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """What a program of others asked besides, by the names of chat completions, its model among them: recorded, and
    sent as far as the server understands it and the agent's config does not say otherwise (``gateway/wire.py``)."""
    chat: ChatFormat | None = None
    """How it is written as one text, where the endpoint is one of raw completions."""


UNPARSED = "unparsed"
"""Why an answer ended that its server generated and then could not read (``gateway/failure.py``)."""


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """The answer. ``tool_calls`` are parsed where the server or dialect parsed them; text stays in ``content``.

    ``tokens`` are what the server told of token ids, where it was asked; ``flaws`` say why they cannot be trained on.
    ``sampling`` is what that server was sent of it, ``endpoint`` where it stands.
    """

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    tokens: Tokens | None = None
    flaws: tuple[str, ...] = ()
    sampling: Mapping[str, Any] | None = None
    endpoint: str | None = None
    reasoning: str = ""
    """What the model thought, where its server tells it apart."""
