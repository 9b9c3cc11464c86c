"""Stitching: calls of a rollout become rows of ids by exact token prefix. Nothing is ever tokenised again. Pure.

A prompt that begins with all ids of a row continues it: what is new is context (mask 0), then the completion (mask 1).
Any other prompt forks a new row, which holds it whole as context. So each sampled id has mask 1 in exactly one place,
and a row is exactly what the model saw. Calls of one sub-task never continue the row of another conversation.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from woodshed.model.drift import Drift, forked
from woodshed.model.rollout import CallRecord, TokenRow
from woodshed.model.tokens import shared


@dataclass(frozen=True, slots=True)
class Stitched:
    """The rows, how often prompts went on in which way, and calls that contradict each other."""

    rows: tuple[TokenRow, ...]
    drift: dict[str, int]
    contradictions: tuple[str, ...] = ()


@dataclass(slots=True)
class _Row:
    """``packed`` holds the ids as int32: a prefix of it is compared as bytes, many times faster than id by id."""

    parent: str | None
    prompt_length: int
    packed: bytes
    ids: list[int]
    mask: list[int]
    logprobs: list[float] | None
    last_length: int = 0
    calls: list[CallRecord] = field(default_factory=list)

    def add(self, call: CallRecord, prompt: tuple[int, ...], completion: tuple[int, ...]) -> None:
        context = prompt[len(self.ids):]
        self.ids += [*context, *completion]
        self.mask += [0] * len(context) + list(call.loss_mask or [1] * len(completion))
        if self.logprobs is not None and call.logprobs is not None:
            own = [0.0] * len(completion) if call.inherited else list(call.logprobs)
            self.logprobs += [0.0] * len(context) + own
        else:
            self.logprobs = None
        self.packed += _pack((*context, *completion))
        self.last_length = len(completion)
        self.calls.append(call)


def stitch(records: Iterable[CallRecord]) -> Stitched:
    """The rows of one rollout. The order of ``records`` does not count, and neither do exact repetitions.

    Two different records of one call are a contradiction: neither is used. Records without ids are left out; whether
    that makes the rollout untrainable is for :func:`woodshed.trainers.rollouts.rollout` to say.
    """
    found: dict[str, CallRecord] = {}
    contradictions: set[str] = set()
    for record in records:
        if found.setdefault(record.call, record) != record:
            contradictions.add(record.call)
    rows: list[_Row] = []
    drift: Counter[str] = Counter()
    for call in sorted(found.keys() - contradictions, key=lambda name: (len(name), name)):
        record = found[call]
        if record.prompt_token_ids and record.completion_token_ids:
            drift[_place(record, record.prompt_token_ids, record.completion_token_ids, rows).value] += 1
    return Stitched(tuple(_finished(number, row) for number, row in enumerate(rows)), dict(sorted(drift.items())),
                    tuple(sorted(contradictions)))


def _place(record: CallRecord, prompt: tuple[int, ...], completion: tuple[int, ...], rows: list[_Row]) -> Drift:
    own = [row for row in rows if row.parent == record.parent]
    packed = _pack(prompt)
    fitting = [row for row in own if packed.startswith(row.packed)]
    if fitting:
        max(fitting, key=lambda row: len(row.ids)).add(record, prompt, completion)
        return Drift.CLEAN
    kind = _how(prompt, own) if own else Drift.BEGUN
    row = _Row(record.parent, len(prompt), b"", [], [], [])
    row.add(record, prompt, completion)
    rows.append(row)
    return kind


def _how(prompt: tuple[int, ...], own: list[_Row]) -> Drift:
    """In what the prompt differs from the row that it shares most with; of equals the newest."""
    same, row = max(((shared(tuple(row.ids), prompt), number, row) for number, row in enumerate(own)),
                    key=lambda one: one[:2])[::2]
    return forked(same, prompt=len(prompt), length=len(row.ids), first=row.prompt_length, last=row.last_length)


def _finished(number: int, row: _Row) -> TokenRow:
    return TokenRow(
        row=number, calls=tuple(call.call for call in row.calls), parent=row.parent,
        policy_versions=tuple(call.policy_version for call in row.calls),
        mixed=tuple(call.call for call in row.calls if call.policy_after is not None), prompt_length=row.prompt_length,
        token_ids=tuple(row.ids), loss_mask=tuple(row.mask),
        logprobs=None if row.logprobs is None else tuple(row.logprobs), finish_reason=row.calls[-1].finish_reason,
    )


def _pack(ids: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(ids)}i", *ids)
