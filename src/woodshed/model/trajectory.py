"""Step and Trajectory: all turns of an attempt, derived from its events."""

from __future__ import annotations

from typing import Any

from woodshed.model.record import Record


class ToolCall(Record):
    """A call the model asked for. ``arguments`` is the parsed object; ``raw`` what it wrote when that was no object."""

    id: str
    name: str
    arguments: dict[str, Any] = {}
    raw: str | None = None
    error: str | None = None


class Observation(Record):
    """What the world answered to one call. ``interrupted``: the intent was recorded, and no result followed.

    Where ``content`` is a part of the output, ``characters`` counts the whole, which ``blob`` (its sha256) holds.
    """

    call: str
    content: str
    exit_code: int | None = None
    truncated: bool = False
    timed_out: bool = False
    interrupted: bool = False
    blob: str | None = None
    characters: int | None = None


class Message(Record):
    """One entry of a conversation in the chat shape. ``role``: system, user, assistant or tool.

    ``reasoning`` is what an assistant thought, where its server told it apart from what it said.
    """

    role: str
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call: str | None = None
    reasoning: str = ""


class Step(Record):
    """One turn: a model call, the tool calls it made, and their observations. ``source`` is system, user or agent.

    ``reasoning`` is what the model thought, where its server told it apart from ``message``.
    ``parent`` is the id of the call that delegated it to a conversation of its own. ``inherited``: another attempt did
    it, and this one goes on from there.
    """

    index: int
    source: str
    message: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    observations: tuple[Observation, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    parent: str | None = None
    inherited: bool = False


class Trajectory(Record):
    """All steps of one execution, in order."""

    version: int = 1
    attempt: str
    execution: int
    task: str
    agent: str
    model: str | None = None
    steps: tuple[Step, ...] = ()
