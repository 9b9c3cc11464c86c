"""Stuck: notices an agent that goes in circles. It is told first; only if it goes on after that is it stopped.

Two things are circles. A cycle: the last calls, with their results, are one sequence of up to ``LONGEST`` calls again
and again; what was said around them does not matter. And variations: calls that differ in spacing, quotes or numbers
alone fail with errors that differ in no more. Results that are new are progress, and are neither.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from woodshed.interfaces import Emit, ToolResult
from woodshed.model import EventKind, ToolCall

LONGEST = 6
"""Calls in the longest cycle that is noticed."""
TELL_AT, STOP_AT = 3, 5
"""Rounds of a cycle. (OpenHands stops at 4 equal calls without a word; told, agents often find another way.)"""
VARY_TELL_AT, VARY_STOP_AT = 4, 10
"""Failures in a row that only vary. More than rounds: numbers may be what is looked for."""
_SHOWN = 160


@dataclass(frozen=True, slots=True)
class _Deed:
    """One call and what came of it, as far as circles go. ``rough`` is None where it did not fail."""

    id: str
    shown: str
    exact: str
    rough: str | None


class Repeats:
    """Looks back on the calls of one conversation. What it finds is told to the model and recorded as events."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._deeds: deque[_Deed] = deque(maxlen=LONGEST * STOP_AT + VARY_STOP_AT)
        self._said, self._same_words = "", 0
        self._told_in: int | None = None
        self.hopeless = False
        """True when telling did not help."""

    def see(self, call: ToolCall, result: ToolResult, turn: int) -> str:
        """A sentence for the model where it goes in circles; else nothing."""
        self._deeds.append(_deed(call, result))
        self._said, self._same_words = "", 0
        found = self._found()
        if found is None:
            self._told_in = None
            return ""
        pattern, period, times, enough = found
        if self._told_in is not None and self._told_in < turn and times >= enough:
            self.hopeless = True
        elif self._told_in is None:
            self._told_in = turn
        text = _sentence(pattern, period, times, [deed.shown for deed in self._last(period)])
        self._emit(EventKind.STUCK, {"told": not self.hopeless, "pattern": pattern, "period": period, "times": times,
                                     "calls": [deed.id for deed in self._last(period * times)], "text": text})
        return text

    def say(self, text: str) -> str:
        """A sentence for the model that wrote, without a call, what it wrote before, but for spacing and numbers."""
        rough = _rough(text)
        self._same_words = self._same_words + 1 if rough == self._said else 1
        self._said = rough
        if self._same_words < 2:
            return ""
        told = f"You wrote the same text {self._same_words} times without doing anything."
        self._emit(EventKind.STUCK, {"told": True, "pattern": "words", "period": 1, "times": self._same_words,
                                     "calls": [], "text": told})
        return told

    def _found(self) -> tuple[str, int, int, int] | None:
        exact = [deed.exact for deed in self._deeds]
        for period in range(1, LONGEST + 1):
            if (times := _rounds(exact, period)) >= TELL_AT:
                return "cycle", period, times, STOP_AT
        rough = [deed.rough for deed in self._deeds]
        if rough and rough[-1] is not None and (times := _rounds(rough, 1)) >= VARY_TELL_AT:
            return "variations", 1, times, VARY_STOP_AT
        return None

    def _last(self, count: int) -> list[_Deed]:
        return list(self._deeds)[-count:]


def _rounds(seen: Sequence[object], period: int) -> int:
    """How many times the last ``period`` entries stand at the end, one round after another."""
    count = period
    while count < len(seen) and seen[-1 - count] == seen[-1 - count + period]:
        count += 1
    return count // period if len(seen) >= period else 0


def _deed(call: ToolCall, result: ToolResult) -> _Deed:
    wrote = json.dumps([call.name, call.arguments, call.raw], sort_keys=True)
    exact = json.dumps([wrote, result.exit_code, result.content])
    failed = result.exit_code not in (0, None) or result.timed_out
    rough = _rough(json.dumps([wrote, result.exit_code, result.content])) if failed else None
    return _Deed(call.id, f"{call.name}: {_brief(call.arguments)}", exact, rough)


def _brief(arguments: dict[str, Any]) -> str:
    first = next((value for value in arguments.values() if isinstance(value, str)), "")
    return " ".join(first.split())[:_SHOWN]


def _rough(text: str) -> str:
    """``text`` without what is trivial: spacing, quotes, letter case, numbers."""
    return re.sub(r"(?:\\[ntr]|[\s\"'\\`])+", "", re.sub(r"0x[0-9a-fA-F]+|\d+", "0", text)).casefold()


def _sentence(pattern: str, period: int, times: int, shown: Sequence[str]) -> str:
    if pattern == "variations":
        return (f"Your last {times} calls differ only in spacing, quotes or numbers, and each failed in the same way. "
                "Find out why before you try again, or do something else.")
    if period == 1:
        return (f"You made this call {times} times with the same result. "
                "Do something else, or say that the task is done.")
    calls = ", ".join(f"`{call}`" for call in shown)
    return (f"You made the same {period} calls ({calls}) {times} times in turn, with the same results. "
            "Do something else, or say that the task is done.")
