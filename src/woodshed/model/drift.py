"""Drift: how prompts go on from what their conversation's calls have told of ids so far. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from woodshed.model.tokens import Tokens, shared


class Drift(StrEnum):
    """How a prompt went on from the row it has most in common with. All but the first two are forks.

    BEGUN is a conversation's first call. ENDING: it differs only in the last few ids of what was generated, such as an
    end-of-turn token that a template writes otherwise. COMPLETION: it differs within the last completion (written again
    by another rule, or reasoning left out). CONTEXT: it differs before, after the first prompt (a history that was
    rewritten, such as by compaction). PROMPT: it differs within the first prompt. AGAIN: it ends before the row does
    (asked again, or went back).
    """

    BEGUN = "begun"
    CLEAN = "clean"
    ENDING = "ending"
    COMPLETION = "completion"
    CONTEXT = "context"
    PROMPT = "prompt"
    AGAIN = "again"


ENDING_IDS = 3
"""Ids at the end of a completion that count as its ending: an end-of-turn token, and a line break around it."""
_ROWS = 4
"""So many rows of a conversation are remembered, the newest: each may hold a whole window of ids."""


def forked(same: int, *, prompt: int, length: int, first: int, last: int) -> Drift:
    """Why a prompt of so many ids, of which the ``same`` first are a row's, is no continuation of it.

    The row has ``length`` ids; its first prompt has ``first`` of them, its last completion ``last``.
    """
    if same == prompt:
        return Drift.AGAIN
    if same < first:
        return Drift.PROMPT
    if same >= length - min(ENDING_IDS, last):
        return Drift.ENDING
    return Drift.COMPLETION if same >= length - last else Drift.CONTEXT


@dataclass(slots=True)
class _Row:
    ids: tuple[int, ...]
    first: int
    last: int


@dataclass(slots=True)
class Course:
    """Follows the calls of one execution as they come, and tells of each prompt what stitching will find.

    It knows less than stitching does: what an earlier execution was told it has not heard, and of a conversation's rows
    it remembers the newest.
    """

    _rows: dict[str | None, list[_Row]] = field(default_factory=dict)

    def of(self, tokens: Tokens, parent: str | None = None) -> Drift | None:
        """How this call's prompt went on, in the conversation that ``parent`` delegated; None where it told no ids."""
        prompt, completion = tokens.prompt, tokens.completion
        if prompt is None or completion is None:
            return None
        rows = self._rows.setdefault(parent, [])
        fitting = [row for row in rows if prompt[:len(row.ids)] == row.ids]
        if fitting:
            row = max(fitting, key=lambda one: len(one.ids))
            row.ids, row.last = tokens.whole, len(completion)
            return Drift.CLEAN
        kind = _nearest(prompt, rows) if rows else Drift.BEGUN
        self._rows[parent] = [*rows, _Row(tokens.whole, len(prompt), len(completion))][-_ROWS:]
        return kind


def _nearest(prompt: Sequence[int], rows: Sequence[_Row]) -> Drift:
    same, _, row = max(((shared(row.ids, prompt), number, row) for number, row in enumerate(rows)),
                       key=lambda one: one[:2])
    return forked(same, prompt=len(prompt), length=len(row.ids), first=row.first, last=row.last)
