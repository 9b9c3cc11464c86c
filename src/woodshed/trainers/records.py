"""The model calls of an attempt as records, from its events. Pure but for the blobs that it is given a way to open.

Nothing is left out silently: a call whose answer or whose tokens are missing or do not fit is a record with ``flaws``,
or one of the ``lost`` calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from woodshed.model import Event, EventKind
from woodshed.model.rollout import WORST, CallRecord, CaptureLevel
from woodshed.model.tokens import Get, Tokens, Unpacker, Unreadable, flaws

_CALLS = frozenset({EventKind.MODEL_CALL, EventKind.MODEL_RESULT, EventKind.NOTE})


@dataclass(frozen=True, slots=True)
class Calls:
    """The answered calls of an execution in their order, and those that have no recorded answer.

    ``cut`` is the last call, where it has none: the attempt may have ended while it was being answered.
    """

    records: tuple[CallRecord, ...]
    lost: tuple[str, ...] = ()
    cut: str | None = None

    @property
    def capture_level(self) -> CaptureLevel:
        """That of the worst call; text where there is none."""
        levels = {record.capture_level for record in self.records}
        return next((level for level in reversed(WORST) if level in levels), CaptureLevel.TEXT)


def calls_of(events: Iterable[Event], get: Get, *, vocabulary: int | None = None) -> Calls:
    """The calls that ``events`` of one execution tell of (``services/history.py`` joins several into one).

    ``get`` opens a blob; ``vocabulary`` is the number of the model's ids, where it is known.
    """
    reader = _Reader(Unpacker(get), vocabulary)
    for event in sorted(events, key=lambda event: event.seq):
        if event.kind in _CALLS:
            reader.read(event)
    return reader.calls()


@dataclass(slots=True)
class _Reader:
    unpacker: Unpacker
    vocabulary: int | None
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: tuple[dict[str, Any], ...] = ()
    open: dict[str, dict[str, Any]] = field(default_factory=dict)
    done: dict[str, CallRecord] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    gap: bool = False

    def read(self, event: Event) -> None:
        data, call = event.data, event.data.get("call")
        if event.kind is EventKind.NOTE:
            if "fault" in data and isinstance(call, str):
                self.refused.add(call)
            return
        if not isinstance(call, str):  # too large for an event, which then holds only its size: who knows which it was
            self.broken.append("a call too large for its event")
            self.gap = True
        elif event.kind is EventKind.MODEL_CALL:
            self._asks(call, data)
        elif call in self.done:
            if not _same(self.done[call], data):
                self.broken.append(call)
        elif call not in self.open:
            self.broken.append(call)
        else:
            self.done[call] = self._record(event, call, self.open[call], data)

    def _asks(self, call: str, data: Mapping[str, Any]) -> None:
        kept = int(data.get("kept") or 0)
        gap = self.gap or kept > len(self.messages)
        self.gap = self.gap and kept > 0
        self.messages = [*self.messages[:kept], *(data.get("messages") or ())]
        if data.get("tools") is not None:
            self.tools = tuple(data["tools"])
        if call not in self.open:
            self.order.append(call)
        self.open[call] = {"data": data, "messages": tuple(self.messages), "tools": self.tools, "gap": gap}

    def _record(self, event: Event, call: str, asked: Mapping[str, Any], data: Mapping[str, Any]) -> CallRecord:
        tokens, wrong = self._tokens(call, data)
        wrong = tuple(dict.fromkeys((*map(str, data.get("flaws") or ()), *wrong)))
        if asked["gap"]:
            wrong = (*wrong, "the messages before it are missing")
        level, theirs = _level(tokens), bool(data.get("inherited"))
        return CallRecord(
            rollout=f"{event.attempt}-{event.execution}", attempt=event.attempt, execution=event.execution, call=call,
            parent=data.get("parent"), model=str(asked["data"].get("model", "")),
            policy_version=tokens.policy_version, policy_after=tokens.policy_after,
            prompt_token_ids=tokens.prompt, completion_token_ids=tokens.completion, logprobs=_finite(tokens.logprobs),
            loss_mask=None if tokens.completion is None else (int(not theirs),) * len(tokens.completion),
            finish_reason=str(data.get("finish_reason") or "stop"), asked=asked["data"].get("asked") or {},
            sampling=data.get("sampling") or asked["data"].get("sampling") or {}, messages=asked["messages"],
            tools=asked["tools"],
            answer=_answer(data), inherited=theirs, capture_level=level, flaws=wrong,
        )

    def _tokens(self, call: str, data: Mapping[str, Any]) -> tuple[Tokens, tuple[str, ...]]:
        if not isinstance(written := data.get("tokens"), Mapping):
            return Tokens(), ()
        try:
            tokens = self.unpacker.unpacked(call, written)
        except Unreadable as error:
            return Tokens(), (str(error),)
        usage = data.get("usage") or {}
        return tokens, flaws(tokens, vocabulary=self.vocabulary, prompt_tokens=usage.get("prompt_tokens"),
                             completion_tokens=usage.get("completion_tokens"))

    def calls(self) -> Calls:
        """All that was read. An answer that is missing is a loss, unless no other call followed.

        One that the endpoint refused for good has no answer that could be lost.
        """
        missing = [call for call in self.order if call not in self.done and call not in self.refused]
        cut = missing.pop() if missing and missing[-1] == self.order[-1] else None
        records = tuple(self.done[call] for call in self.order if call in self.done)
        return Calls(records, tuple(dict.fromkeys([*missing, *self.broken])), cut)


def _level(tokens: Tokens) -> CaptureLevel:
    if tokens.prompt is None or tokens.completion is None:
        return CaptureLevel.TEXT
    return CaptureLevel.TOKENS if tokens.logprobs is None else CaptureLevel.LOGPROBS


def _finite(values: Sequence[float] | None) -> tuple[float, ...] | None:
    """As a record holds them: none at all where one is no number, which is a flaw told beside."""
    return tuple(values) if values is not None and all(map(math.isfinite, values)) else None


def _answer(data: Mapping[str, Any]) -> dict[str, Any]:
    """The answer as a message of a conversation, with each call as it was understood."""
    message: dict[str, Any] = {"role": "assistant", "content": str(data.get("content") or "")}
    if data.get("reasoning"):
        message["reasoning_content"] = str(data["reasoning"])
    if data.get("tool_calls"):
        message["tool_calls"] = list(data["tool_calls"])
    return message


def _same(record: CallRecord, data: Mapping[str, Any]) -> bool:
    """Whether a further answer to a recorded call is that very answer once more."""
    return record.answer == _answer(data) and record.finish_reason == str(data.get("finish_reason") or "stop")
