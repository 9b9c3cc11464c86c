"""Conversations of an attempt in the chat shape that trainers take, from its records and events. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from woodshed.model import Event, EventKind
from woodshed.model.rollout import CallRecord

Chat = dict[str, Any]
_THOUGHT = "reasoning_content"


def message(sent: Mapping[str, Any]) -> Chat:
    """One message: role, content, ``tool_calls`` with arguments as objects, ``tool_call_id`` of a result.

    What a model thought is its ``reasoning_content``, which the templates of thinking models read.
    """
    made: Chat = {"role": str(sent.get("role", "user")), "content": str(sent.get("content") or "")}
    if thought := sent.get("reasoning_content") or sent.get("reasoning"):
        made[_THOUGHT] = str(thought)
    if sent.get("tool_calls"):
        made["tool_calls"] = [_call(call) for call in sent["tool_calls"]]
    if sent.get("tool_call_id") is not None:
        made["tool_call_id"] = str(sent["tool_call_id"])
    return made


def _call(call: Mapping[str, Any]) -> Chat:
    """A call as it was sent (``function``, arguments as text) or as it was understood (arguments an object)."""
    function = call.get("function") or call
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    return {"id": str(call.get("id", "")), "type": "function",
            "function": {"name": str(function.get("name", "")),
                         "arguments": arguments if isinstance(arguments, dict) else {}}}


def asked(record: CallRecord) -> list[Chat]:
    """The conversation that was sent."""
    return [message(one) for one in record.messages]


def answered(record: CallRecord) -> Chat:
    """The model's answer."""
    return message(record.answer)


def counted(talk: Sequence[Chat]) -> list[Chat]:
    """The same conversation with the ids of its calls counted anew, so that two that say the same are equal.

    A server names the calls of its answer, and a loop or program gives them names of its own before it sends them back:
    only their order holds. Ids are nine letters and digits: templates of Mistral's models take no others.
    """
    made: list[Chat] = []
    waiting: dict[str, list[str]] = {}
    count = 0
    for one in talk:
        one, calls = dict(one), []
        waiting |= {call["id"]: [] for call in one.get("tool_calls", ())}  # an old name that is used again is a new one
        for call in one.get("tool_calls", ()):
            count += 1
            waiting[call["id"]].append(f"call{count:05d}")
            calls.append({**call, "id": f"call{count:05d}"})
        if calls:
            one["tool_calls"] = calls
        if (names := waiting.get(one.get("tool_call_id", ""))) is not None:
            one["tool_call_id"] = names.pop(0) if len(names) > 1 else names[0]
        made.append(one)
    return made


def whole(records: Sequence[CallRecord]) -> list[Chat] | None:
    """The main conversation with its last answer; None where it was written again on the way, or there is none.

    Each answer stands there as the model gave it, and all else as it was sent. Ids of calls are counted anew.
    """
    talk: list[Chat] = []
    for record in records:
        if record.parent is not None:
            continue
        now = counted([*asked(record), answered(record)])
        if len(now) <= len(talk) or _said(now[: len(talk)]) != _said(talk):
            return None
        talk += now[len(talk):]
    return talk or None


def _said(talk: Sequence[Chat]) -> list[tuple[Any, ...]]:
    """What is compared of a conversation: what each message says, and whose; not what a model thought beside it."""
    return [tuple(one.get(key) for key in ("role", "content", "tool_calls", "tool_call_id")) for one in talk]


@dataclass(frozen=True, slots=True)
class Tried:
    """A tool call that an answer made, and how it ended; ``failed`` is None where nothing is known of that."""

    name: str
    arguments: str
    failed: bool | None


def tried(events: Iterable[Event]) -> dict[str, list[Tried]]:
    """By model call, what its answer did. Calls that no model asked for are left out."""
    last: dict[str | None, str] = {}
    owner: dict[str, tuple[str, int]] = {}
    found: dict[str, list[Tried]] = {}
    for event in sorted(events, key=lambda event: event.seq):
        data, call = event.data, event.data.get("call")
        if not isinstance(call, str):
            continue
        if event.kind is EventKind.MODEL_RESULT:
            last[data.get("parent")] = call
        elif event.kind is EventKind.TOOL_CALL and (asker := last.get(data.get("parent"))) is not None:
            made = found.setdefault(asker, [])
            owner[call] = (asker, len(made))
            made.append(Tried(str(data.get("name", "")), json.dumps(data.get("arguments") or {}, sort_keys=True), None))
        elif event.kind is EventKind.TOOL_RESULT and call in owner:
            asker, place = owner[call]
            failed = bool(data.get("exit_code")) or bool(data.get("timed_out")) or bool(data.get("interrupted"))
            before = found[asker][place]
            found[asker][place] = Tried(before.name, before.arguments, failed)
    return found
