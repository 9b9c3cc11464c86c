"""Compaction: a conversation made smaller. What is left out stays on the shelf, and one event says what and where.

First old thoughts go, then old outputs, the oldest first; then whole turns, for which a summary stands; the system
prompt, the task and the last turns stay as they are. Only where those alone are too much for the window are they
shortened, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from woodshed.harness.kit import Kit
from woodshed.harness.summary import Summary
from woodshed.harness.tokens import Gauge
from woodshed.harness.turns import Entry, Turn
from woodshed.model import EventKind

KEPT_TURNS = 2
_STEPS = (4_000, 1_500, 500)  # characters to which outputs of the last turns are shortened, where nothing else helps


@dataclass
class Held:
    """All that is sent: tools, system prompt and task, and the turns that are not left out."""

    tools_weight: int
    system: Entry
    task: Entry
    turns: list[Turn] = field(default_factory=list)
    summary: Entry | None = None
    """The task with the summary below it, where turns were left out."""

    def entries(self) -> Iterator[Entry]:
        """In order. The summary is part of the task's message: roles must alternate."""
        yield self.system
        yield self.summary or self.task
        for turn in self.turns:
            yield from turn.entries

    @property
    def weight(self) -> int:
        """Of all of it."""
        return self.tools_weight + sum(entry.weight for entry in self.entries())


class Compaction:
    """Makes one conversation smaller whenever it is asked to, and knows what it left out so far."""

    def __init__(self, held: Held, kit: Kit, gauge: Gauge, summary_tokens: int) -> None:
        self._held, self._kit, self._gauge = held, kit, gauge
        self._summary, self._summary_tokens = Summary(), summary_tokens

    def to(self, goal: int, most: int) -> bool:
        """Come down to ``goal`` tokens by leaving out what is old, and below ``most`` by any means. True if smaller."""
        before = self._tokens()
        thoughts = list(self._without_thoughts(goal, self._held.turns[:-KEPT_TURNS]))
        outputs = list(self._without_outputs(goal))
        turns = list(self._without_turns(goal))
        if self._tokens() > most:
            thoughts += self._without_thoughts(most, self._held.turns)
        words = list(self._shortened(most)) if self._tokens() > most else []
        after = self._tokens()
        if thoughts or outputs or turns or words:
            shown = self._held.summary.tail if self._held.summary is not None else ""
            self._kit.emit(EventKind.COMPACTION, {
                "outputs": outputs, "turns": turns, "words": words, "tokens_before": before, "tokens_after": after,
                "summary": shown, **({"thoughts": thoughts} if thoughts else {})})
        return after < before

    def _tokens(self) -> int:
        return self._gauge.tokens(self._held.weight)

    def _without_thoughts(self, goal: int, turns: list[Turn]) -> Iterator[str]:
        for turn in turns:
            if self._tokens() <= goal:
                return
            if turn.said is not None and turn.said.reasoning:
                self._keep_words(turn)
                turn.forget()
                yield turn.handle

    def _without_outputs(self, goal: int) -> Iterator[str]:
        for turn in self._held.turns[:-KEPT_TURNS]:
            for number, entry in enumerate(turn.replies):
                if self._tokens() <= goal:
                    return
                if entry.handle is not None and (short := entry.gone(self._kit.how)) is not entry:
                    turn.replies[number] = short
                    yield entry.handle

    def _without_turns(self, goal: int) -> Iterator[str]:
        held = self._held
        while self._tokens() > goal and len(held.turns) > KEPT_TURNS:
            turn = held.turns.pop(0)
            self._keep_words(turn)
            for line in self._summary.take(turn):
                self._kit.shelf.log(line)
            self._stand_in(min(self._summary_tokens, goal // 3))
            yield turn.handle

    def _stand_in(self, tokens: int) -> None:
        task = self._held.task
        text = self._summary.text(self._gauge.weight(tokens), self._kit.how)
        self._held.summary = Entry(task.role, task.body, tail=f"\n{text}")

    def _shortened(self, most: int) -> Iterator[str]:
        """The last turns, too: outputs by steps, then words; the newest last."""
        for limit in _STEPS:
            for turn in self._held.turns:
                for number, entry in enumerate(turn.replies):
                    if self._tokens() <= most:
                        return
                    if (short := entry.shortened(limit, self._kit.how)) is not entry:
                        turn.replies[number] = short
                        yield entry.handle or ""
        for turn in self._held.turns:
            if self._tokens() > most:
                self._keep_words(turn)
                if turn.hush(self._kit.how):
                    yield turn.handle

    def _keep_words(self, turn: Turn) -> None:
        """Whole, as it was before any of it was left out."""
        if turn.said is not None and turn.handle not in self._kit.shelf:
            self._kit.shelf.keep(turn.handle, turn.whole())
