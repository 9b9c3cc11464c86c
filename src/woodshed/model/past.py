"""Past: what earlier executions of a fine attempt did, as far as a new one builds on it."""

from __future__ import annotations

from woodshed.model.attempt import StopReason, Usage
from woodshed.model.changes import ChangeSet
from woodshed.model.record import Record
from woodshed.model.trajectory import Observation, ToolCall


class Answer(Record):
    """How a model call ended that is never made again: with an answer or, where ``fault`` names one, with a failure.

    ``fault`` is the name of a class of :mod:`woodshed.errors`, ``content`` its message then.
    """

    call: str
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    fault: str | None = None


class PastCall(Record):
    """A tool call that was begun. ``seen`` is its result, None where it was interrupted; ``done`` that it ended all."""

    call: str
    name: str = ""
    seen: Observation | None = None
    done: bool = False


class Checkpoint(Record):
    """The files of a sandbox as they were between two turns.

    ``digest`` is that of the captured changes, and of the blob that lists them. ``held`` counts the calls of
    :attr:`Past.calls` whose effects are in it: the first ones. ``turn`` is how many turns were over.
    """

    digest: str
    turn: int
    held: int


class Past(Record):
    """What a new execution builds on: events of earlier ones up to (``execution``, ``seq``).

    ``calls`` are in the order in which their results came, interrupted ones last. ``checkpoints`` come newest first;
    below the last one stands the sandbox's own start. ``told`` is what was told to the model between two turns, by how
    many were over. ``changes`` is set where the acting was over and its end state captured: then it is only judged.
    """

    execution: int
    seq: int
    turn: int = 0
    answers: tuple[Answer, ...] = ()
    calls: tuple[PastCall, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    told: tuple[tuple[int, str], ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    acted_s: float = 0.0
    usage: Usage = Usage()
    stop: StopReason | None = None
    changes: ChangeSet | None = None
