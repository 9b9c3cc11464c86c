"""What a black-box agent did, read from the conversation it holds with its model. Pure: a state and what was said in,

another state and the events out. A call is known from the model's answer, its result from a later request that brings
it back; what the agent does without telling the model is not known here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from woodshed.harness.clip import clip
from woodshed.interfaces import ModelResponse
from woodshed.model import EventKind, Message

Fact = tuple[EventKind, Mapping[str, Any]]
"""An event's kind and data. How long a result took is for whoever holds a clock."""
_SHOWN = 16_000
_MOST_OPEN, _MOST_HEARD = 256, 4096


@dataclass(frozen=True, slots=True)
class Open:
    """A call whose result was not told yet. ``wire`` is the id the model gave it; None for one written in text."""

    call: str
    wire: str | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of the conversation: calls without a result, messages that were told, answers so far."""

    open: tuple[Open, ...] = ()
    heard: frozenset[str] = frozenset()
    turns: int = 0


@dataclass(frozen=True, slots=True)
class Reader:
    """How to read one agent: see :class:`ExternalAgent`."""

    result_code: str | None = None
    action: str | None = None

    def asked(self, seen: Seen, messages: Sequence[Message]) -> tuple[Seen, list[Fact]]:
        """A request leaves: results of open calls, and words of system and user that are new, in their order."""
        answers = self._answers(seen, messages)
        facts, heard = list[Fact](), set(seen.heard)
        for index, message in enumerate(messages):
            if index in answers:
                facts.append((EventKind.TOOL_RESULT, self._result(answers[index].call, message.content)))
            elif message.role in ("system", "user") and _mark(message) not in heard:
                facts.append((EventKind.MESSAGE, {"role": message.role, "content": message.content}))
            if message.role in ("system", "user"):
                heard.add(_mark(message))
        closed = {one.call for one in answers.values()}
        left = tuple(one for one in seen.open if one.call not in closed)
        # Bounded: an agent that goes on for ever may have its oldest words told once more.
        return replace(seen, open=left, heard=frozenset(heard if len(heard) <= _MOST_HEARD else ())), facts

    def _answers(self, seen: Seen, messages: Sequence[Message]) -> dict[int, Open]:
        """Which message tells the result of which open call. From the end: ids may come again in every turn."""
        waiting, found = list(seen.open), dict[int, Open]()
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index]
            if not waiting:
                break
            for one in reversed(waiting):
                said = message.role == "tool" and message.call == one.wire if one.wire is not None else (
                    message.role == "user" and _mark(message) not in seen.heard)
                if said:
                    found[index] = one
                    waiting.remove(one)
                    break
        return found

    def answered(self, seen: Seen, response: ModelResponse) -> tuple[Seen, list[Fact]]:
        """The model's answer reaches the agent: the calls it asks for begin now, as far as is known."""
        turn, facts, opened = seen.turns + 1, list[Fact](), list[Open]()
        for number, call in enumerate(response.tool_calls, 1):
            name = f"t{turn:04d}c{number:03d}"
            wrong = {"raw": call.raw, "error": call.error} if call.error else {}
            facts.append((EventKind.TOOL_CALL,
                          {"call": name, "name": call.name, "arguments": call.arguments, **wrong}))
            opened.append(Open(name, call.id))
        if not opened and self.action is not None and (found := re.search(self.action, response.content)):
            name = f"t{turn:04d}c001"
            facts.append((EventKind.TOOL_CALL, {"call": name, "name": "bash", "arguments": {"command": found[1]}}))
            opened.append(Open(name, None))
        return replace(seen, open=(*seen.open, *opened)[-_MOST_OPEN:], turns=turn), facts

    def _result(self, call: str, content: str) -> Mapping[str, Any]:
        shown, clipped = clip(content, _SHOWN)
        code = re.search(self.result_code, content[:_SHOWN]) if self.result_code is not None else None
        number = int(code[1]) if code and re.fullmatch(r"-?\d{1,9}", code[1] or "") else None
        return {"call": call, "content": shown, "exit_code": number, "truncated": clipped, "timed_out": False}


def _mark(message: Message) -> str:
    return hashlib.sha256(f"{message.role}\0{message.content}".encode("utf-8", "surrogatepass")).hexdigest()
