"""What goes to a model and what comes back, as all parts of an attempt see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from woodshed.model.tokens import Tokens
from woodshed.model.trajectory import Message, ToolCall


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it. ``parameters`` is a JSON schema of an object; ``strict`` binds the server to it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False


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
