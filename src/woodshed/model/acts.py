"""What a tool call does to the work: reads it, checks it, edits it. Told from its words, for nothing else is kept.

What only reads or only checks never counts as an edit, nor against a budget. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from posixpath import basename, splitext

from woodshed.model.commands import Kind, bare, kind_of, parts, redirections, runs
from woodshed.model.trajectory import Observation, ToolCall, Trajectory

_READING_TOOLS = frozenset({
    "read_file", "search", "diff", "finish", "read_output", "plan", "read_job", "wait_job", "kill_job", "delegate"})
"""What a sub-task does counts by the calls of its own."""
_WRITES = re.compile(
    r"""open\([^)]*['"][rb]?[wax+]|\.write\(|write_(?:text|bytes)|writeFile|appendFile|createWriteStream"""
    r"""|shutil\.(?:copy|move|rmtree)|os\.(?:remove|rename|replace|unlink|mkdir|makedirs|rmdir|system)|\.unlink\("""
    r"""|\.rename\(|\.touch\(|subprocess|fs\.(?:write|append|unlink|rename|copy)|File\.write""")
_FAILED = re.compile(r"\b[1-9]\d* (?:failed|errors?|failures?)\b|^(?:FAILED|ERROR|FAIL)\b|Traceback \(most recent|"
                     r"AssertionError|^not ok\b", re.MULTILINE)
_COMMAND_CHARS = 100_000


@dataclass(frozen=True, slots=True)
class Act:
    """One thing a call did. ``counts``: it neither reads nor checks. ``passed`` is a check's, as far as can be told."""

    call: int
    edits: bool = False
    checks: bool = False
    passed: bool = False
    counts: bool = False


READ, EDIT, SETUP = Act(0), Act(0, edits=True, counts=True), Act(0, counts=True)
CHECK = Act(0, checks=True)


def acts_of(trajectory: Trajectory, changed: Sequence[str], patterns: tuple[str, ...] = (),
            test_command: str = "") -> list[Act]:
    """Everything the agent did, in order. ``changed`` are paths that differ in the end: running one checks it."""
    found: list[Act] = []
    reader = _Reader(changed, patterns, test_command)
    number = 0
    for step in trajectory.steps:
        seen = {observation.call: observation for observation in step.observations}
        for call in step.tool_calls:
            number += 1
            observation = seen.get(call.id)
            for act in reader.acts(call, observation):
                passed = act.checks and _went_well(call, observation)
                found.append(replace(act, call=number, passed=passed))
    return found


def checks_after_edit(acts: Sequence[Act]) -> tuple[list[Act], bool]:
    """The checks after the last edit, and whether anything was edited at all."""
    last = max((number for number, act in enumerate(acts) if act.edits), default=-1)
    return [act for act in acts[last + 1:] if act.checks], last >= 0


def _went_well(call: ToolCall, seen: Observation | None) -> bool:
    """Exit status 0; where a pipe or ``||`` hides the check's own, no failure in what it printed either."""
    if seen is None or seen.interrupted or seen.timed_out or seen.exit_code not in (0, None):
        return False
    command = str(call.arguments.get("command", ""))
    return not (any(sign in command for sign in ("|", ";", "\n", "&")) and _FAILED.search(seen.content))


class _Reader:
    """Reads calls one after another; remembers what scripts the agent wrote, to know what running one does."""

    def __init__(self, changed: Sequence[str], patterns: tuple[str, ...], test_command: str) -> None:
        names = {basename(path) for path in changed}
        stems = {splitext(name)[0] for name in names}  # modules: a folder of that name is another thing
        words = [rf"(?<!\w){re.escape(name)}(?!\w)" for name in sorted(names) if len(name) > 1]
        words += [rf"(?<![\w/]){re.escape(stem)}(?![\w/])" for stem in sorted(stems) if len(stem) > 1]
        self._changed = re.compile("|".join(words) or r"(?!)")
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._test_command = test_command.strip()
        self._written: dict[str, bool] = {}

    def acts(self, call: ToolCall, seen: Observation | None) -> list[Act]:
        """What this call did, part by part."""
        if call.error is not None:
            return [SETUP]
        if call.name in _READING_TOOLS:
            return [READ]
        if call.name == "run_tests":
            return [CHECK]
        if call.name in ("write_file", "edit_file"):
            text = str(call.arguments.get("content", call.arguments.get("new", "")))
            self._wrote(str(call.arguments.get("path", "")), text)
            return [EDIT if seen is None or seen.exit_code in (0, None) else SETUP]
        command = call.arguments.get("command")
        return self._shell(command) if isinstance(command, str) else [EDIT]

    def _wrote(self, path: str, text: str) -> None:
        name = basename(path)
        self._written[name] = self._written.get(name, False) or bool(_WRITES.search(text))

    def _shell(self, command: str) -> list[Act]:
        command = command[:_COMMAND_CHARS].strip()
        if command == self._test_command and command:
            return [CHECK]
        if any(pattern.search(command) for pattern in self._patterns):
            return [CHECK]
        if "<<" in command:
            return [self._here(command)]
        if "$(" in command or "`" in command:
            return [EDIT]
        try:
            return [self._simple(words) for words in parts(command)] or [READ]
        except ValueError:  # quotes that do not close
            return [EDIT]

    def _here(self, command: str) -> Act:
        """A command fed from its own text: a program to run, or a file to write."""
        first = command.split("\n", 1)[0].split("<<", 1)[0]
        if ">" in first or _WRITES.search(command):
            if written := re.search(r">\s*([\w./-]+)", command.split("\n", 1)[0]):
                self._wrote(written[1], command)
            return EDIT
        return self._run(command) if runs(basename(first.split(" ", 1)[0].strip())) else EDIT

    def _simple(self, words: list[str]) -> Act:
        words, redirected = redirections(words)
        words = bare(words)
        act = self._named(words) if words else READ
        return EDIT if redirected and not act.checks else act  # what a check printed is no work

    def _named(self, words: list[str]) -> Act:
        match kind_of(words):
            case Kind.RUN:
                return self._run(" ".join(words))
            case Kind.SHELL:
                return _worst(self._shell(words[words.index("-c") + 1]))
            case kind:
                return {Kind.READ: READ, Kind.CHECK: CHECK, Kind.SETUP: SETUP}.get(kind, EDIT)

    def _run(self, text: str) -> Act:
        """A program run: it edits where its text says so, and checks where it is about what was changed."""
        scripts = [basename(word) for word in text.split()]
        if _WRITES.search(text) or any(self._written.get(script) for script in scripts):
            return EDIT
        return CHECK if self._changed.search(text) else READ


def _worst(acts: Iterable[Act]) -> Act:
    """Several acts of one command as one: it edits if any does, else checks if any does."""
    found = list(acts)
    return next((act for kind in (EDIT, CHECK, SETUP) for act in found if act == kind), READ)
