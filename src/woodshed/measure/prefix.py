"""The first steps of an attempt, as its events tell them. Pure.

A step is what the agent did at once: an answer of its model with the calls it made and their results; where no model
was asked, one call. What a helper did belongs to the step that delegated it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from woodshed.measure.sections import sections
from woodshed.model import Event, EventKind
from woodshed.model.past import WENT_ON

_RESULTS = frozenset({EventKind.MODEL_RESULT, EventKind.TOOL_RESULT})
_COPIED = _RESULTS | {EventKind.MESSAGE, EventKind.MODEL_CALL, EventKind.TOOL_CALL, EventKind.COMPACTION,
                      EventKind.STUCK, EventKind.FINISH, EventKind.FEEDBACK, EventKind.NOTE}

_JUDGING = frozenset({EventKind.CHANGES, EventKind.VERIFIER, EventKind.GRADE})


def steps(events: Sequence[Event]) -> int:
    """How many there are whose end was recorded."""
    return sum(_ends(event, _kind(events)) for event in events)


def first(events: Sequence[Event], step: int) -> list[Event]:
    """Everything up to the end of step number ``step``, the last result of it, and the checkpoint after it.

    ``events`` are those of one execution, in order. Of a task of several steps, the last step of one that was judged
    takes that with it, where another one began: what comes next is the other's. Raises ValueError where there are
    fewer.
    """
    parts, kind, before = sections(events), _kind(events), list[Event]()
    for part in parts[:-1] if step else ():
        found = sum(_ends(event, kind) for event in part.events)
        if step < found:
            return before + _first(part.events, step, kind)
        before, step = before + part.events, step - found
        if not step and found:
            return before
    return before + _first(parts[-1].events, step, kind)


def _first(events: Sequence[Event], step: int, kind: EventKind) -> list[Event]:
    seen, end = 0, 0
    for place, event in enumerate(events):
        if seen == step and _begins(event, kind):
            break
        seen += _ends(event, kind)
        if seen and (event.kind in _RESULTS or event.kind is EventKind.CHECKPOINT):
            end = place + 1
        if event.kind is EventKind.STATE and event.data.get("state") == "acted":
            break
    if seen < step:
        raise ValueError(f"there are {seen} steps")
    return list(events[:end]) if step else []


def inherited(events: Sequence[Event], attempt: str) -> list[tuple[EventKind, dict[str, object]]]:
    """What a branch's own log begins with: kind and data, marked as another attempt's: ``attempt``'s, or of whoever it

    had it from. What the agent was told of a sandbox that was not as it had been is told as one kind of event.
    """
    judged = _judged(events)
    return [fact for event in events for fact in _passed_on(event, attempt, judged)]


def _passed_on(event: Event, attempt: str, judged: set[int]) -> list[tuple[EventKind, dict[str, object]]]:
    data = event.data
    if event.kind in _JUDGING and id(event) in judged:
        return [(event.kind, data)]
    if event.kind is EventKind.RESUME and data.get("state") == "live" and data.get("text"):
        return [(EventKind.STATE, _marked({"state": WENT_ON, "turn": data["turn"], "text": data["text"]}, attempt))]
    told = event.kind is EventKind.STATE and data.get("state") == WENT_ON
    return [(event.kind, _marked(data, attempt))] if event.kind in _COPIED or told or id(event) in judged else []


def _marked(data: Mapping[str, object], attempt: str) -> dict[str, object]:
    """``inherited`` stands last: it is counted by that (``store/captures.py``)."""
    own = {name: value for name, value in data.items() if name not in ("of", "inherited")}
    return {**own, "of": data.get("of", attempt), "inherited": True}


def _judged(events: Sequence[Event]) -> set[int]:
    """What tells of steps of a task: when each began, and what its end was judged by. Their ids."""
    return {id(event) for part in sections(events) if part.step is not None for event in part.events
            if event.kind is EventKind.STATE or (event.kind in _JUDGING and part.judged_by is not None)}


def _kind(events: Sequence[Event]) -> EventKind:
    """The result that ends or makes a step: a model's answer where one was ever asked."""
    asked = any(event.kind is EventKind.MODEL_CALL for event in events)
    return EventKind.MODEL_RESULT if asked else EventKind.TOOL_RESULT


def _ends(event: Event, kind: EventKind) -> bool:
    return event.kind is kind and "call" in event.data and "parent" not in event.data


def _begins(event: Event, kind: EventKind) -> bool:
    begins = EventKind.MODEL_CALL if kind is EventKind.MODEL_RESULT else EventKind.TOOL_CALL
    return event.kind is begins and "parent" not in event.data
