"""Summary: turns that are left out, told in few lines, without asking a model. A function of the turns alone."""

from __future__ import annotations

import re

from woodshed.harness.shelf import LOG
from woodshed.harness.tokens import weigh
from woodshed.harness.turns import How, Turn

_COMMAND_CHARS = 80
_SHORT = 60  # an output that is no longer stands in its line
_SAID_CHARS = 120
_PLAN_CHARS = 1_500
_TOLD_CHARS = 600
_FILES = 30
_STEP = re.compile(r"^\s*(?:[-*] \[[ xX]\]|\d+[.)]) \S", re.MULTILINE)


class Summary:
    """What stands for the turns that are left out. Grows with each; ``text`` is bounded, and the log has the rest."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._last = 0
        self._lines: list[tuple[str, int]] = []
        self._told: list[str] = []
        self._files: dict[str, None] = {}
        self._plan = ""

    def take(self, turn: Turn) -> list[str]:
        """One turn more; the lines of it, for the log."""
        self._first = turn.number if self._first is None else self._first
        self._last = turn.number
        lines = lines_of(turn)
        self._lines += [(line, weigh(line) + 1) for line in lines]
        self._told += [text for text in turn.told if text]
        self._files |= dict.fromkeys(turn.files)
        self._plan = plan_in(turn) or self._plan
        return lines

    def text(self, room: int, how: How) -> str:
        """All of it in about ``room`` weight, the newest calls first to stay; empty where nothing is left out."""
        if self._first is None:
            return ""
        head = [f"[Turns {self._first} to {self._last} are left out here to save room; all of it can still be read: "
                f"{how(LOG, 0)} lists their calls; with \"find\" it finds a text in all outputs.]"]
        if self._told:
            head += ["You were told meanwhile:", *(f"- {text[:_TOLD_CHARS]}" for text in self._told)]
        if self._plan:
            head += ["Your plan:", self._plan[:_PLAN_CHARS]]
        if files := list(self._files):
            more = f" and {len(files) - _FILES} more" if len(files) > _FILES else ""
            head.append(f"Files you changed: {', '.join(files[:_FILES])}{more}")
        left = room - sum(weigh(line) + 1 for line in head)
        shown: list[str] = []
        for line, weight in reversed(self._lines):
            if (left := left - weight) < 0:
                break
            shown.insert(0, line)
        before = len(self._lines) - len(shown)
        return "\n".join([*head, "Done so far, each output by its handle:",
                          *([f"... {before} lines before these: {how(LOG, 0)}"] if before else []), *shown])


def lines_of(turn: Turn) -> list[str]:
    """What was said in one line, and each call in one: handle, tool, what it was called with, exit code, output."""
    said = turn.said.body if turn.said is not None else ""
    lines = [f"{turn.handle} you wrote: {_brief(said, _SAID_CHARS)}"] if said.strip() and (
        turn.said is not None and (turn.said.calls or not turn.deeds)) else []
    for call, seen in turn.deeds:
        first = next((value for value in call.arguments.values() if isinstance(value, str)), "")
        size = f"{len(seen.content):,} characters" if len(seen.content) > _SHORT else _brief(seen.content, _SHORT)
        code = "" if seen.exit_code is None else f" -> exit {seen.exit_code}"
        lines.append(f"{call.id} {call.name}: {_brief(first, _COMMAND_CHARS)}{code}"
                     f"{', timed out' if seen.timed_out else ''}{': ' + size if size else ''}")
    return lines


def plan_in(turn: Turn) -> str:
    """The plan that was noted in this turn, or a message of at least two numbered or checkable steps; else empty."""
    for call, _ in reversed(turn.deeds):
        if call.name == "plan" and isinstance(steps := call.arguments.get("steps"), str):
            return steps
    said = turn.said.body if turn.said is not None else ""
    return said if len(_STEP.findall(said)) >= 2 else ""


def _brief(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[:limit - 3] + "..."

