"""Past: what earlier executions of a fine attempt did, as far as a new one builds on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from woodshed.model.attempt import StopReason, Usage
from woodshed.model.changes import ChangeSet
from woodshed.model.record import Record
from woodshed.model.trajectory import Observation, ToolCall
from woodshed.model.verdict import Valid

WENT_ON = "went_on"
"""The ``state`` of what tells what a branch's agent was told where it went on: ``turn`` and ``text``."""


class Answer(Record):
    """How a model call ended that is never made again: with an answer or, where ``fault`` names one, with a failure.

    ``fault`` is the name of a class of :mod:`woodshed.errors`, ``content`` its message then.
    """

    call: str
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    fault: str | None = None


class PastCall(Record):
    """A tool call that was begun. ``seen`` is its result, None where it was interrupted; ``done`` that it ended all."""

    call: str
    name: str = ""
    arguments: dict[str, Any] = {}
    seen: Observation | None = None
    done: bool = False


class Checkpoint(Record):
    """The files of a sandbox as they were between two turns.

    ``digest`` is that of the captured changes, and of the blob that lists them. ``held`` counts the calls of
    :attr:`Past.calls` whose effects are in it: the first ones. ``turn`` is how many turns were over; ``over`` that it
    was made when a step of several had ended and its changes were captured.
    """

    digest: str
    turn: int
    held: int
    over: bool = False


class Past(Record):
    """What a new execution builds on: events of earlier ones up to (``execution``, ``seq``).

    ``calls`` are in the order in which their results came, interrupted ones last. ``said`` is what the harness emitted
    beside its calls: kind and data, as JSON with sorted keys. ``checkpoints`` come newest first; below the last one
    stands the sandbox's own start. ``told`` is what the model was told between two turns, by how many were over.
    ``acted_s`` is the time that the agent has had. ``changes`` is set where the acting was over and its end state
    captured: then it is only judged, with ``stop`` and ``usage`` as they were.

    Of a task of several steps all of this is of the step that was reached: ``step`` names it, and is None between two
    of them. ``earlier`` are those before it, in order. ``asked`` counts the step's model calls, answered or not.
    """

    execution: int
    seq: int
    step: str | None = None
    earlier: tuple[StepPast, ...] = ()
    answers: tuple[Answer, ...] = ()
    calls: tuple[PastCall, ...] = ()
    said: tuple[tuple[str, str], ...] = ()
    told: tuple[tuple[int, str], ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    acted_s: float = 0.0
    stop: StopReason | None = None
    usage: Usage = Usage()
    changes: ChangeSet | None = None
    asked: int = 0

    @property
    def remarks(self) -> dict[int, tuple[int, ...]]:
        """Which of the task's remarks were made (their places in it), by the agent's turns before them."""
        found: dict[int, tuple[int, ...]] = {}
        for data in (json.loads(data) for kind, data in self.said if kind == "feedback"):
            if isinstance(data.get("remark"), int) and isinstance(data.get("step"), int):
                found[data["step"]] = (*found.get(data["step"], ()), data["remark"])
        return found

    @property
    def heard(self) -> dict[tuple[int, bool], tuple[tuple[int, str], ...]]:
        """What was said to the agent from outside, each with the number of its message: by the turns before it, and

        whether it had just said that it is done.
        """
        found: dict[tuple[int, bool], tuple[tuple[int, str], ...]] = {}
        for data in (json.loads(data) for kind, data in self.said if kind == "feedback"):
            if isinstance(data.get("message"), int) and isinstance(data.get("step"), int):
                place = data["step"], data.get("finish") is True
                found[place] = (*found.get(place, ()), (data["message"], str(data["said"])))
        return found

    @property
    def played(self) -> dict[tuple[int, str], str]:
        """What a person said whom a model plays: by the agent's turns before it, and the occasion."""
        return {(data["step"], str(data["occasion"])): str(data["said"])
                for data in (json.loads(data) for kind, data in self.said if kind == "feedback")
                if data.get("by") == "model" and isinstance(data.get("step"), int)}

    @property
    def records(self) -> tuple[Past, ...]:
        """What was done in each step that was begun, in order; a task that has none is one."""
        between = self.earlier and self.step is None
        return (*(one.past for one in self.earlier), *(() if between else (self,)))

    @property
    def begun(self) -> int:
        """How many model calls belong to steps that nobody acts in any more."""
        own = self.asked if self.step is not None and self.changes is not None else 0
        return sum(one.past.asked for one in self.earlier) + own

    @property
    def known(self) -> tuple[Answer, ...]:
        """The answers that are given once more to whoever acts on; those to :attr:`begun` calls never are."""
        return () if self.step is not None and self.changes is not None else self.answers

    @property
    def acted(self) -> bool:
        """Whether the acting had begun."""
        return bool(self.calls) or any(kind == "message" for kind, _ in self.said)

    @property
    def turns(self) -> int:
        """Turns that it tells of."""
        return sum(answer.fault is None for answer in self.answers)


class StepPast(Record):
    """A step that is over and judged, and is not judged again."""

    step: str
    past: Past
    verdict: Valid


Past.model_rebuild()


def canonical(data: Mapping[str, Any]) -> str:
    """The same text for the same data of an event."""
    return json.dumps(data, sort_keys=True, default=str)
