"""The trajectory that an execution's events tell. Pure: events in, a Trajectory out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from woodshed.model import Event, EventKind, Observation, Step, ToolCall, Trajectory

_OF_CALLS = frozenset({EventKind.TOOL_CALL, EventKind.TOOL_RESULT})


@dataclass(slots=True)
class _Draft:
    """A step while its events are read. ``observations`` are by call id; None until a result follows."""

    source: str
    message: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    observations: dict[str, Observation | None] = field(default_factory=dict)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    asked: bool = False
    seq: int = 0
    call_seqs: list[int] = field(default_factory=list)
    parent: str | None = None
    inherited: bool = False

    def step(self, index: int) -> Step:
        """The step; a call without a result is one that was cut off, and says so."""
        seen = tuple(found or Observation(call=call, content="", interrupted=True)
                     for call, found in self.observations.items())
        return Step(index=index, source=self.source, message=self.message, reasoning=self.reasoning,
                    tool_calls=tuple(self.calls), observations=seen,
                    prompt_tokens=self.prompt_tokens, completion_tokens=self.completion_tokens, parent=self.parent,
                    inherited=self.inherited)


def from_events(events: Sequence[Event], *, task: str, agent: str, model: str | None = None) -> Trajectory:
    """All turns of one execution, in the order of ``seq``.

    Messages of system and user, each answer of the model with the calls it made, and each call that no model asked
    for (reference solution, replay) are steps. Those of a sub-task stand where they happened, with their parent.
    Raises ValueError for no events, or events of several executions.
    """
    owners = {(event.attempt, event.execution) for event in events}
    if len(owners) != 1:
        raise ValueError(f"events of one execution are needed, not of {len(owners)}")
    [(attempt, execution)] = owners
    steps = tuple(draft.step(index) for index, draft in enumerate(_drafts(events)))
    return Trajectory(attempt=attempt, execution=execution, task=task, agent=agent, model=model, steps=steps)


def seqs(events: Sequence[Event]) -> list[tuple[int, tuple[int, ...]]]:
    """For each step of :func:`from_events` the ``seq`` of the event that began it, and those of its calls."""
    return [(draft.seq, tuple(draft.call_seqs)) for draft in _drafts(events)]


def _drafts(events: Sequence[Event]) -> list[_Draft]:
    drafts: list[_Draft] = []
    for event in sorted(events, key=lambda event: event.seq):
        if event.kind not in _OF_CALLS or "call" in event.data:  # else: too large to be kept, its size alone is told
            _read(event.kind, event.data, drafts, event.seq)
    return drafts


def _read(kind: EventKind, data: dict[str, Any], drafts: list[_Draft], seq: int) -> None:
    parent, inherited = data.get("parent"), bool(data.get("inherited"))
    if kind is EventKind.MESSAGE:
        source = str(data.get("role", "user"))
        drafts.append(_Draft(source if source in ("system", "user") else "user", str(data.get("content", "")), seq=seq,
                             parent=parent, inherited=inherited))
    elif kind is EventKind.MODEL_RESULT:
        usage = data.get("usage") or {}
        drafts.append(_Draft("agent", str(data.get("content", "")), str(data.get("reasoning") or ""),
                             prompt_tokens=usage.get("prompt_tokens"),
                             completion_tokens=usage.get("completion_tokens"), asked=True, seq=seq, parent=parent,
                             inherited=inherited))
    elif kind is EventKind.TOOL_CALL:
        draft = next((draft for draft in reversed(drafts) if draft.parent == parent), None)
        if draft is None or not draft.asked:
            draft = _Draft("agent", seq=seq, parent=parent, inherited=inherited)
            drafts.append(draft)
        call = ToolCall(id=str(data["call"]), name=str(data.get("name", "")), arguments=data.get("arguments") or {},
                        raw=data.get("raw"), error=data.get("error"))
        draft.calls.append(call)
        draft.call_seqs.append(seq)
        draft.observations[call.id] = None
    elif kind is EventKind.TOOL_RESULT:
        _answer(Observation(
            call=str(data["call"]), content=str(data.get("content", "")), exit_code=data.get("exit_code"),
            truncated=bool(data.get("truncated")), timed_out=bool(data.get("timed_out")),
            interrupted=bool(data.get("interrupted")), blob=data.get("blob"), characters=data.get("characters")),
            reversed(drafts))


def _answer(seen: Observation, drafts: Iterable[_Draft]) -> None:
    for draft in drafts:
        if seen.call in draft.observations:
            draft.observations[seen.call] = seen
            return
