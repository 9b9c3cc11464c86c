"""The events of an attempt at a task of several steps, step by step. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from woodshed.model import Event, EventKind, Valid


@dataclass(slots=True)
class Section:
    """What belongs to one step, from its ``step`` event to the next one's. ``step`` is None before the first."""

    step: str | None
    events: list[Event] = field(default_factory=list)

    @property
    def verdict(self) -> Valid | None:
        """What the step was judged; None where it never was, or its event was too large to be kept."""
        found = [event.data for event in self.events if _judged(event) and "verdict" in event.data]
        return Valid.model_validate(found[-1]["verdict"]) if found else None

    @property
    def unbegun(self) -> Valid | None:
        """The verdict upon a step that the agent kept from beginning."""
        found = [event.data for event in self.events
                 if event.kind is EventKind.STATE and event.data.get("state") == "step_unbegun"]
        return Valid.model_validate(found[-1]["verdict"]) if found else None

    @property
    def judged_by(self) -> int | None:
        """The execution that judged the step."""
        return next((event.execution for event in reversed(self.events) if _judged(event)), None)

    @property
    def asked(self) -> int:
        """How many model calls were begun in it."""
        return len({event.data["call"] for event in self.events
                    if event.kind is EventKind.MODEL_CALL and "call" in event.data})


def sections(events: Iterable[Event]) -> list[Section]:
    """All of ``events``, in order: one section without a name, and one for each step that was begun."""
    found = [Section(None)]
    for event in events:
        if begins(event):
            found.append(Section(str(event.data.get("step"))))
        found[-1].events.append(event)
    return found


def newest(events: Sequence[Event]) -> list[Event]:
    """Those of the step that was begun last; all of them where there are no steps."""
    return sections(events)[-1].events


def begins(event: Event) -> bool:
    """Whether a step begins with it."""
    return event.kind is EventKind.STATE and event.data.get("state") == "step"


def _judged(event: Event) -> bool:
    return event.kind is EventKind.STATE and event.data.get("state") == "step_judged"
