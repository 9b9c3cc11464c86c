"""Turns: what the families' chat formats have in common. A conversation is turns, each between two marks. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Literal

from woodshed.harness.dialects.cursor import any_of
from woodshed.harness.dialects.families import FAMILIES
from woodshed.harness.dialects.hearing import hear
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ToolSpec
from woodshed.model import Message, ToolCall

_REFERENCES = {"<": "&lt;", "[": "&#91;", "]": "&#93;"}

Opening = Callable[[str, Sequence[ToolSpec]], str]
"""What stands before the first turn, of the system prompt and the tools."""
Result = Callable[[str, str, int], str]
"""One result's text: of what the tool said, the answer that called it, and which of its calls it was."""


@dataclass(frozen=True)
class Turns:
    """One family's chat format, as :class:`woodshed.model.exchange.ChatFormat`.

    The token that begins every text (BOS) is no part of it: servers put it before a prompt, as their tokenizer says.
    """

    name: str
    stops: tuple[str, ...]
    opening: Opening
    user: tuple[str, str]
    answer: tuple[str, str]
    """Around an answer; the first is also what a prompt ends with."""
    results: tuple[str, str, str]
    """Before, between and after the results of one answer."""
    result: Result
    marks: tuple[str, ...]
    """What only the format itself may write."""
    opened: str = ""
    again: str | None = None
    """Before an answer that follows results, where that is something else."""
    held: str | None = None
    """After an answer that results follow, where that is something else."""
    joined: str | None = None
    """Between results and what a user says after them, where both are one turn."""
    told: tuple[Literal["first", "last"], Opening, Opening] | None = None
    """Which user's turn tells of system prompt and tools, and what of it before the turn and at its start."""
    ended: Callable[[str], str] = field(default=lambda said: "")
    """What ends a turn that an answer itself consists of several of."""

    @cached_property
    def _marked(self) -> re.Pattern[str]:
        return any_of(self.marks)

    def harmless(self, text: str) -> str:
        """``text`` with none of the marks in it: their first sign is written as HTML would."""
        return self._marked.sub(lambda found: _REFERENCES.get(found[0][0], found[0][0] + "\u200b") + found[0][1:], text)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """The conversation, up to where the next answer begins."""
        system = "\n\n".join(self.harmless(one.content) for one in messages if one.role == "system")
        return "".join((self.opening(system, tools), *self._turns(messages, system, tools), self.opened))

    def _turns(self, messages: Sequence[Message], system: str, tools: Sequence[ToolSpec]) -> Iterator[str]:
        groups = [(role, list(group)) for role, group in groupby(
            (one for one in messages if one.role != "system"), key=lambda one: one.role)]
        users = [one for role, group in groups if role == "user" for one in group]
        before, said = "", ""
        for number, (role, group) in enumerate(groups):
            follows = groups[number + 1][0] if number + 1 < len(groups) else ""
            if role == "assistant":
                for one in group:
                    yield self._answer(one.content, before, follows)
                    before, said = role, one.content
            elif role == "tool":
                shown = [self.result(self.harmless(one.content), said, index) for index, one in enumerate(group)]
                joined = follows == "user" and self.joined is not None
                yield self.results[0] + self.results[1].join(shown) + ("" if joined else self.results[2])
            else:
                yield from (self._said(one, users, system, tools, joined=before == "tool" and one is group[0])
                            for one in group)
            before = role
        yield self._start(before)

    def _start(self, before: str) -> str:
        return self.again if before == "tool" and self.again is not None else self.answer[0]

    def _answer(self, said: str, before: str, follows: str) -> str:
        end = self.held if follows == "tool" and self.held is not None else self.answer[1] or self.ended(said)
        return f"{self._start(before)}{said}{end}"

    def _said(
        self, one: Message, users: Sequence[Message], system: str, tools: Sequence[ToolSpec], *, joined: bool
    ) -> str:
        text = self.harmless(one.content)
        if joined and self.joined is not None:
            return f"{self.joined}{text}{self.user[1]}"
        if self.told is None or one is not (users[0] if self.told[0] == "first" else users[-1]):
            return f"{self.user[0]}{text}{self.user[1]}"
        _, before, inside = self.told
        return f"{before(system, tools)}{self.user[0]}{inside(system, tools)}{text}{self.user[1]}"


def name_of(family: str, answer: str, index: int) -> str:
    """The name of the tool that an answer's call with this number calls; ``tool`` where that cannot be read."""
    calls = [found for found in hear(answer, FAMILIES[family], Types(())).found if isinstance(found, ToolCall)]
    return calls[index].name if index < len(calls) else "tool"
