"""An attempt of several executions, of which each went on with an earlier one. Pure: events in, records out.

An execution that goes on begins with a ``resume`` event that names the execution before it and the last of its events
that counts. What came later there (of a process that was taken for dead) is evidence, and no part of the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from woodshed.measure.sections import Section, sections
from woodshed.model import (
    Answer,
    ChangeSet,
    Checkpoint,
    Event,
    EventKind,
    Observation,
    Past,
    PastCall,
    StepPast,
    StopReason,
    ToolCall,
    Usage,
)
from woodshed.model.past import WENT_ON, canonical

_ACTED = frozenset({EventKind.MESSAGE, EventKind.MODEL_CALL, EventKind.TOOL_CALL, EventKind.RESUME})
_JUDGED = frozenset({EventKind.CHANGES, EventKind.VERIFIER, EventKind.GRADE, EventKind.VERDICT, EventKind.ERROR})
_FINAL = frozenset({EventKind.VERDICT, EventKind.ERROR})
_INTENTS = {EventKind.MODEL_CALL: EventKind.MODEL_RESULT, EventKind.TOOL_CALL: EventKind.TOOL_RESULT}
_NOT_SAID = _JUDGED | {*_INTENTS, *_INTENTS.values(), EventKind.STATE, EventKind.STAGE, EventKind.POLICY,
                       EventKind.CHECKPOINT, EventKind.RESUME, EventKind.PERSON_CALL, EventKind.PERSON_RESULT}
_TIMED = _ACTED | {*_INTENTS.values(), EventKind.CHECKPOINT}


def begun(events: Iterable[Event]) -> tuple[int, int] | None:
    """The execution that this one goes on with, and the last of its events that counts; None where it began anew."""
    for event in events:
        if event.kind is EventKind.RESUME and event.data.get("state") == "begun":
            return int(event.data["execution"]), int(event.data["seq"])
    return None


def joined(events: Sequence[Event], execution: int) -> list[Event]:
    """The attempt as ``execution`` tells it, as though it had been the only one: numbered from 0, every call once.

    ``events`` are those of all executions that it goes on with. What an earlier one did beside acting (a verdict that
    did not count) is left out, and so is a call that was interrupted there and made again. What judged a step whose
    verdict stands is told.
    """
    kept = [event for section in sections(_line(events, execution)) for event in _counting(section, execution)]
    return [event.model_copy(update={"execution": execution, "seq": seq}) for seq, event in enumerate(kept)]


def _counting(section: Section, execution: int) -> list[Event]:
    """Of the events of a section (each step numbers its calls anew) those that an attempt told as one has."""
    last = {(e.kind, e.data.get("call")): e.execution for e in section.events if e.kind in _INTENTS}
    answered = {(event.execution, event.kind, event.data.get("call")) for event in section.events}
    judged = section.judged_by

    def counts(event: Event) -> bool:
        if event.execution == execution:
            return True
        if event.kind in _INTENTS:
            call = event.data.get("call")
            ended = (event.execution, _INTENTS[event.kind], call) in answered
            return ended or last[event.kind, call] == event.execution
        return event.kind not in _JUDGED or (event.execution == judged and event.kind not in _FINAL)

    return [event for event in section.events if counts(event)]


def past(events: Sequence[Event]) -> Past | None:
    """What a new execution goes on with, from the events of all earlier ones; None where nothing was begun yet.

    Of several steps it is in the first one without a verdict that can be read.
    """
    acted = {event.execution for event in events if event.kind in _ACTED}
    if not acted:
        return None
    first, *steps = sections(_line(events, max(acted)))
    if not steps:
        return _read(first)
    earlier: list[StepPast] = []
    for section in steps:
        reached = _read(section).model_copy(update={"asked": section.asked})
        if (verdict := section.verdict) is None:
            return reached.model_copy(update={"step": section.step, "earlier": tuple(earlier)})
        earlier.append(StepPast(step=str(section.step), past=reached, verdict=verdict))
    return Past(execution=reached.execution, seq=reached.seq, earlier=tuple(earlier))


def _read(section: Section) -> Past:
    reader = _Reader()
    for event in section.events:
        reader.read(event)
    return reader.past(section.events[-1].execution, section.events[-1].seq)


def _line(events: Sequence[Event], execution: int) -> list[Event]:
    """The events of ``execution`` behind those of earlier ones that it goes on with, in order."""
    by: dict[int, list[Event]] = {}
    for event in sorted(events, key=lambda event: (event.execution, event.seq)):
        by.setdefault(event.execution, []).append(event)
    line, number, cut = list[Event](), execution, None
    while True:
        own = [event for event in by.get(number, ()) if cut is None or event.seq <= cut]
        line[:0] = own
        before = begun(own)
        if before is None or before[0] >= number:
            return line
        number, cut = before


@dataclass(slots=True)
class _Reader:
    """Reads a line of events, oldest first."""

    answers: list[Answer] = field(default_factory=list)
    asked: tuple[int, str] | None = None
    failed: Mapping[str, Any] | None = None
    open_calls: dict[str, PastCall] = field(default_factory=dict)
    calls: list[PastCall] = field(default_factory=list)
    said: list[tuple[str, str]] = field(default_factory=list)
    told: list[tuple[int, str]] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    spans: dict[int, tuple[float, float]] = field(default_factory=dict)
    resumed: set[int] = field(default_factory=set)
    ended: dict[str, Any] = field(default_factory=dict)

    def read(self, event: Event) -> None:
        """One more."""
        data = event.data
        match event.kind:
            case EventKind.MODEL_CALL if "call" in data:
                self._asks(event)
            case EventKind.MODEL_RESULT if "call" in data:
                self.answers.append(_answer(data))
                self.asked = self.failed = None
            case EventKind.TOOL_CALL if "call" in data:
                self.open_calls[data["call"]] = PastCall(
                    call=data["call"], name=str(data.get("name", "")), arguments=data.get("arguments") or {})
            case EventKind.TOOL_RESULT if data.get("call") in self.open_calls:
                self.calls.append(_seen(self.open_calls.pop(data["call"]), data))
            case EventKind.CHECKPOINT if "digest" in data:
                self.checkpoints.append(Checkpoint(digest=data["digest"], turn=data["turn"], held=len(self.calls),
                                                   over=bool(data.get("over"))))
            case EventKind.RESUME if data.get("state") == "live" and data.get("text"):
                self.told.append((int(data["turn"]), str(data["text"])))
            case EventKind.STATE if data.get("state") == WENT_ON:
                self.told.append((int(data["turn"]), str(data["text"])))
            case EventKind.STATE if data.get("state") == "acted":
                self.ended = {"stop": StopReason(data["stop"]), "usage": Usage.model_validate(data.get("usage", {}))}
            case EventKind.CHANGES if "changes" in data and self.ended:
                self.ended["changes"] = ChangeSet.model_validate(data)
            case EventKind.NOTE if self.asked is not None and data.get("call") == self.asked[1]:
                self.failed = data
            case kind if kind not in _NOT_SAID:
                own = {name: value for name, value in data.items() if name not in ("of", "inherited")}
                self.said.append((kind.value, canonical(own)))
        self._times(event)

    def past(self, execution: int, seq: int) -> Past:
        """All that was read."""
        return Past(
            execution=execution, seq=seq, answers=tuple(self.answers), calls=(*self.calls, *self.open_calls.values()),
            said=tuple(self.said), told=tuple(self.told), checkpoints=tuple(reversed(self.checkpoints)),
            acted_s=sum(end - begin for begin, end in self.spans.values()), **self.ended,
        )

    def _asks(self, event: Event) -> None:
        """A call that the same execution went on after, though it had no answer, failed there; and so it is told."""
        if self.asked is not None and self.asked[0] == event.execution:
            told = self.failed or {"fault": "ModelUnreachable", "message": "it was cut off"}
            self.answers.append(Answer(call=self.asked[1], fault=told["fault"], content=str(told["message"])))
        self.asked, self.failed = (event.execution, event.data["call"]), None

    def _times(self, event: Event) -> None:
        """The agent's time: of an execution that went on, from when all was restored."""
        live = event.kind is EventKind.RESUME and event.data.get("state") == "live"
        if event.kind is EventKind.RESUME and not live:
            self.resumed.add(event.execution)
            return
        over = event.kind is EventKind.STATE and event.data.get("state") == "acted"
        if event.kind not in _TIMED and not over:
            return
        at = event.at.timestamp()
        if event.execution in self.spans:
            self.spans[event.execution] = (self.spans[event.execution][0], max(at, self.spans[event.execution][1]))
        elif live or event.execution not in self.resumed:
            self.spans[event.execution] = (at, at)


def _answer(data: Mapping[str, Any]) -> Answer:
    usage = data.get("usage") or {}
    return Answer(
        call=data["call"], content=str(data.get("content", "")), reasoning=str(data.get("reasoning") or ""),
        tool_calls=tuple(ToolCall.model_validate(call) for call in data.get("tool_calls") or ()),
        finish_reason=str(data.get("finish_reason", "stop")), prompt_tokens=usage.get("prompt_tokens") or 0,
        completion_tokens=usage.get("completion_tokens") or 0, seconds=data.get("seconds") or 0.0,
    )


def _seen(call: PastCall, data: Mapping[str, Any]) -> PastCall:
    seen = Observation(
        call=call.call, content=str(data.get("content", "")), exit_code=data.get("exit_code"),
        truncated=bool(data.get("truncated")), timed_out=bool(data.get("timed_out")),
        interrupted=bool(data.get("interrupted")), blob=data.get("blob"), characters=data.get("characters"))
    return call.model_copy(update={"seen": seen, "done": bool(data.get("done"))})
