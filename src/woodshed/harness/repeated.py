"""Who goes on from another attempt's state without taking up its conversation by a record of calls.

A program of others cannot be told what it did: it does it again, with the answers that were recorded, and goes on by
itself. Any other agent begins a conversation of its own, and is told that work has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from woodshed.errors import HarnessFault
from woodshed.harness.clip import clip
from woodshed.harness.rehearsal import Furnishing, less
from woodshed.interfaces import Acting, Furnished, Harness, ModelClient, ModelRequest, ModelResponse
from woodshed.model import EventKind, Past, StopReason, Usage

Fact = tuple[EventKind, Mapping[str, Any]]
Check = Callable[[Sequence[Fact], int], tuple[str, Sequence[Fact]]]
"""Holds what was done again against the record, with so many answers that were not asked for: what is wrong with it, or

nothing; and what there is to tell of it.
"""
_REPEATED = frozenset({EventKind.MESSAGE, EventKind.TOOL_CALL, EventKind.TOOL_RESULT})
_LISTED, _COMMAND = 30, 200


class Repeated:
    """A harness that does the first steps of an attempt once more, in a fresh sandbox, and goes on by itself.

    Its model's client gives the recorded answers first; what it does with them really happens, and stands in the log
    already. Before it asks for more than was recorded it is held against the record by ``check``: where it does not
    agree, nothing is sent. What the repetition took counts against the limits, and not as this attempt's usage.
    """

    needs_model = True

    def __init__(self, harness: Harness, past: Past, check: Check) -> None:
        self._harness, self._check, self._answers = harness, check, len(past.answers)
        self._done: list[Fact] = []
        self._live, self._wrong = False, ""
        self._model: ModelClient | None = None
        self._before: Usage | None = None
        self._inner: Acting

    async def act(self, acting: Acting) -> StopReason:
        """As the harness itself does. Raises HarnessFault where it did not do again what it did."""
        self._model, self._emit = acting.model, acting.emit
        self._inner = inner = replace(acting, emit=self.emit, model=self if acting.model is not None else None)
        try:
            stop = await self._harness.act(inner)
            self._goes_on()
            return stop
        finally:
            acting.usage = less(inner.usage, self._before or inner.usage)

    def emit(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        """Append an event, where it does not stand in the log from the beginning."""
        if self._live or kind not in _REPEATED:
            self._emit(kind, data)
        else:
            self._done.append((kind, data))

    async def call(self, request: ModelRequest) -> ModelResponse:
        """As :meth:`ModelClient.call`; the client itself knows the first answers. Raises HarnessFault as :meth:`act`.
        """
        assert self._model is not None
        if not self._answers:
            self._goes_on()
        self._answers = max(0, self._answers - 1)
        return await self._model.call(request)

    def _goes_on(self) -> None:
        """All was done again, or it is over. Once it was not as it should be, it never is."""
        if not self._live:
            self._live = True
            self._before = self._inner.usage.model_copy()
            self._wrong, facts = self._check(self._done, self._answers)
            for kind, data in facts:
                self._emit(kind, data)
        if self._wrong:
            raise HarnessFault(self._wrong)


class _FurnishedRepeated(Furnishing, Repeated):
    """With a program of its own."""


def repeated(harness: Harness, past: Past, check: Check) -> Repeated:
    """``harness`` doing again what ``past`` tells, and going on from there."""
    return (_FurnishedRepeated if isinstance(harness, Furnished) else Repeated)(harness, past, check)


class Successor:
    """A harness that begins its own conversation in a state that another agent left, and is told so with its task."""

    def __init__(self, harness: Harness, past: Past, say: str | None = None) -> None:
        self._harness, self._note = harness, _begun(past, say)
        self.needs_model = harness.needs_model

    async def act(self, acting: Acting) -> StopReason:
        """As the harness itself does."""
        instruction = f"{acting.task.instruction.rstrip()}\n\n{self._note}\n" if self._note else acting.task.instruction
        acting.task = acting.task.model_copy(update={"instruction": instruction})
        return await self._harness.act(acting)


class _FurnishedSuccessor(Furnishing, Successor):
    """With a program of its own."""


def successor(harness: Harness, past: Past, say: str | None = None) -> Successor:
    """``harness`` where what ``past`` tells was done before it; ``say`` is a person's word about it, or None."""
    return (_FurnishedSuccessor if isinstance(harness, Furnished) else Successor)(harness, past, say)


def _begun(past: Past, say: str | None) -> str:
    """What was done, in few words: the last calls, one a line, with how they ended."""
    calls = [call for one in (*(earlier.past for earlier in past.earlier), past) for call in one.calls]
    lines = []
    if calls:
        listed = calls[-_LISTED:]
        more = f" (the last {len(listed)} of {len(calls)})" if len(listed) < len(calls) else ""
        lines = [f"[Somebody else has begun this work, and you go on with it. The files are as their calls left them; "
                 f"nothing else of theirs still runs. What they called{more}:"]
        for call in listed:
            what = call.arguments.get("command", call.arguments.get("path", ""))
            code = f" (exit code {call.seen.exit_code})" if call.seen and call.seen.exit_code is not None else ""
            lines.append(f"- {call.name} {clip(' '.join(str(what).split()), _COMMAND)[0]}{code}")
        lines[-1] += "]"
    return "\n".join([*lines, *([say] if say else [])])
