"""An attempt done once more from its record, and one that goes on from a part of another's.

Both run the harness from its beginning with what was recorded in the place of what it would do, as a resumed attempt
does (``harness/resume.py``): so conversation, budgets and judgements are made by the same code as then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from woodshed.harness.recorded import Work, carried_out
from woodshed.interfaces import (
    Acting,
    Furnished,
    Harness,
    Hear,
    ModelClient,
    ModelRequest,
    ModelResponse,
    Reach,
    Said,
    ToolResult,
)
from woodshed.model import Answer, EnvironmentSpec, EventKind, Past, PastCall, StopReason, Usage
from woodshed.model.past import WENT_ON, canonical

Recall = Callable[[Answer], ModelResponse | Exception]
"""What a recorded answer was: ``gateway.recall``."""


class OutOfRecord(Exception):
    """More was asked for than was recorded."""


class Recital:
    """A ModelClient that gives the recorded answers in turn. Raises OutOfRecord after the last one.

    ``over`` says whether more was asked for.
    """

    def __init__(self, answers: Sequence[Answer], recall: Recall) -> None:
        self._answers, self._recall = deque(answers), recall
        self.over = False

    async def call(self, request: ModelRequest) -> ModelResponse:
        """The next one."""
        if not self._answers:
            self.over = True
            raise OutOfRecord
        known = self._recall(self._answers.popleft())
        if isinstance(known, Exception):
            raise known
        return known


class Rehearsal:
    """A harness that does what ``past`` records: its model is a Recital, its tools are real. It stops where that ends.

    The first ``held`` calls are taken from the record: the sandbox has their effects. With ``bounded`` no call is made
    that is not in the record; without, it is made, for whoever compares.
    """

    def __init__(self, harness: Harness, past: Past, *, held: int = 0, bounded: bool = False) -> None:
        self._harness, self._past, self._bounded = harness, past, bounded
        self.needs_model = harness.needs_model
        self._held = {call.call: call for call in past.calls[:held]}
        self._calls = {call.call for call in past.calls}
        self._heard = past.heard
        self._turn = -1

    async def act(self, acting: Acting) -> StopReason:
        """Why it ended, as it was recorded where the record ended first."""
        self._acting, self._emit = acting, acting.emit
        acting.between_turns, acting.remarks, acting.hear = self._between_turns, self._remarks, self._hear
        acting.played = lambda turn, occasion: self._past.played.get((turn, occasion), "")
        if self._held or self._bounded:
            acting.around_tool = self._tool
        try:
            return await self._harness.act(acting)
        except OutOfRecord:
            return self._past.stop or StopReason.FINISHED

    async def _between_turns(self) -> Sequence[str]:
        self._turn += 1
        return [text for turn, text in self._past.told if turn == self._turn]

    def _remarks(self, turn: int) -> Sequence[int]:
        return self._past.remarks.get(turn, ())

    async def _hear(self, turn: int, finished: bool) -> Sequence[Said]:
        return [Said(*said) for said in self._heard.pop((turn, finished), ())]

    async def _tool(self, intent: Mapping[str, Any], work: Work, reach: Reach) -> ToolResult:
        if (known := self._held.get(intent["call"])) is not None:
            return _seen(known)
        if self._bounded and intent["call"] not in self._calls:
            raise OutOfRecord
        return await carried_out(_within(self._emit, intent), intent, work)


class Furnishing:
    """Of whoever acts by a harness whose program must stand in the sandbox: that one says how."""

    _harness: Harness

    def furnish(self, spec: EnvironmentSpec) -> EnvironmentSpec:
        """See :class:`woodshed.interfaces.Furnished`."""
        assert isinstance(self._harness, Furnished)
        return self._harness.furnish(spec)


class _FurnishedRehearsal(Furnishing, Rehearsal):
    """With a program of its own."""


def rehearsal(harness: Harness, past: Past) -> Rehearsal:
    """The whole of ``past`` once more, by the harness that it is of."""
    return (_FurnishedRehearsal if isinstance(harness, Furnished) else Rehearsal)(harness, past)


class Rehearsals:
    """A harness that does, in each step of a task, what the step's own record tells; a model recites it.

    ``over`` says whether more was asked for than was recorded.
    """

    def __init__(self, harness: Harness, records: Sequence[Past], recall: Recall) -> None:
        self._harness, self._records, self._recall = harness, records, recall
        self.needs_model = harness.needs_model
        self.over = False

    async def act(self, acting: Acting) -> StopReason:
        """As :meth:`Rehearsal.act`; nothing, in a step that is not in the record."""
        number = acting.task.step
        past = self._records[number] if number < len(self._records) else Past(execution=1, seq=0)
        recital = Recital(past.answers, self._recall)
        acting.model = recital if acting.model is not None else None
        try:
            return await Rehearsal(self._harness, past).act(acting)
        finally:
            self.over = self.over or (recital.over and past.asked <= len(past.answers))


class _FurnishedRehearsals(Furnishing, Rehearsals):
    """With a program of its own."""


def rehearsals(harness: Harness, records: Sequence[Past], recall: Recall) -> Rehearsals:
    """The whole of an attempt at a task of several steps once more, by the harness that it is of."""
    return (_FurnishedRehearsals if isinstance(harness, Furnished) else Rehearsals)(harness, records, recall)


class AtStep:
    """A harness whose acting in one step of a task is ``other``'s: the step in which a branch goes on."""

    def __init__(self, harness: Harness, other: Harness, step: int) -> None:
        self._harness, self._other, self._step = harness, other, step
        self.needs_model = harness.needs_model

    async def act(self, acting: Acting) -> StopReason:
        """As the one whose step it is."""
        return await (self._other if acting.task.step == self._step else self._harness).act(acting)


class _FurnishedAtStep(Furnishing, AtStep):
    """With a program of its own."""


def at_step(harness: Harness, other: Harness, step: int) -> AtStep:
    """``harness``, but for one step of a task, in which ``other`` acts."""
    return (_FurnishedAtStep if isinstance(harness, Furnished) else AtStep)(harness, other, step)


class Continuation:
    """A harness whose attempt begins with what another one did, and goes on by itself.

    The sandbox has the effects of all calls of ``past``, the log its events, the model client its answers. What they
    took counts against the limits, and not as this attempt's usage. ``told`` is said to the agent where it goes on;
    ``say`` is a person's word among it, or None.
    """

    def __init__(self, harness: Harness, past: Past, told: Sequence[str] = (), say: str | None = None) -> None:
        self._harness, self._past, self._new, self._say = harness, past, list(told), say
        self.needs_model = harness.needs_model
        self._answers = len(past.answers)
        self._calls: dict[str, PastCall] = {call.call: call for call in past.calls}
        self._said = Counter(past.said)
        self._heard, self._turn = past.heard, -1
        self._model: ModelClient | None = None
        self._outer: Hear | None = None
        self._before: Usage | None = None
        self._inner: Acting

    async def act(self, acting: Acting) -> StopReason:
        """As the harness itself does, from there on."""
        self._model, self._emit, self._outer = acting.model, acting.emit, acting.hear
        self._inner = inner = replace(
            acting, emit=self.emit, around_tool=self._tool, between_turns=self._between_turns, remarks=self._remarks,
            hear=self._hear, played=self._played, model=self if acting.model is not None else None)
        try:
            return await self._harness.act(inner)
        finally:
            acting.usage = less(inner.usage, self._before or inner.usage)

    def emit(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        """Append an event, where it does not stand in the log from the beginning."""
        if kind in (EventKind.TOOL_CALL, EventKind.TOOL_RESULT) and data["call"] in self._calls:
            if kind is EventKind.TOOL_RESULT:
                del self._calls[data["call"]]
            return
        said = (kind.value, canonical(data)) if self._said else None
        if said is not None and self._said[said] > 0:
            self._said[said] -= 1
        elif not self._answers and not self._calls:
            self._emit(kind, data)

    async def call(self, request: ModelRequest) -> ModelResponse:
        """As :meth:`ModelClient.call`; the client itself knows the first answers."""
        assert self._model is not None
        if not self._answers:
            self._goes_on()
        self._answers = max(0, self._answers - 1)
        return await self._model.call(request)

    async def _tool(self, intent: Mapping[str, Any], work: Work, reach: Reach) -> ToolResult:
        known = self._calls.get(intent["call"])
        if known is not None and known.seen is not None:
            del self._calls[known.call]
            return _seen(known)
        self._goes_on()
        return await carried_out(_within(self._emit, intent), intent, work)

    async def _between_turns(self) -> Sequence[str]:
        self._turn += 1
        told = [text for turn, text in self._past.told if turn == self._turn]
        if self._answers or not (self._new or self._say):
            return told
        if self._say is not None:
            self._emit(EventKind.FEEDBACK, {"said": self._say, "step": self._turn})
        new, self._new, self._say = [*self._new, *([self._say] if self._say is not None else [])], [], None
        for text in new:
            self._emit(EventKind.STATE, {"state": WENT_ON, "turn": self._turn, "text": text})
        return [*told, *new]

    def _remarks(self, turn: int) -> Sequence[int] | None:
        return self._past.remarks.get(turn, () if self._answers else None)

    def _played(self, turn: int, occasion: str) -> str | None:
        return self._past.played.get((turn, occasion), "" if self._answers else None)

    async def _hear(self, turn: int, finished: bool) -> Sequence[Said]:
        known = [Said(*said) for said in self._heard.pop((turn, finished), ())]
        if self._answers or self._outer is None:
            return known
        return [*known, *await self._outer(turn, finished)]

    def _goes_on(self) -> None:
        """From here on nothing is taken from the record. What was used until now was another's."""
        self._calls.clear()
        self._said.clear()
        if self._before is None:
            used = self._inner.usage
            calls = min(used.tool_calls, len(self._past.calls))
            self._before = used.model_copy(update={"tool_calls": calls})


def _within(emit: Callable[[EventKind, Mapping[str, Any]], None], intent: Mapping[str, Any]) -> Any:
    """``emit`` for a call: the events of a sub-task's name the call that delegated it."""
    parent = {"parent": intent["parent"]} if "parent" in intent else {}
    return lambda kind, data: emit(kind, {**parent, **data})


def _seen(known: PastCall) -> ToolResult:
    seen = known.seen
    if seen is None:
        return ToolResult("")
    return ToolResult(seen.content, seen.exit_code, seen.truncated, seen.timed_out, known.done, seen.blob,
                      seen.characters)


def less(used: Usage, before: Usage) -> Usage:
    """What was used since ``before``."""
    earlier = before.model_dump()
    return Usage(**{name: max(0, count - earlier[name]) for name, count in used.model_dump().items()})
