"""Finishing: what an agent claims at its end, held against what it did. Pure, but for the one event it makes.

Whether a check ran after the last edit, and what admits a failure, is told as reward rules tell it (``model/acts.py``,
``model/claim.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from posixpath import basename
from typing import Any

from woodshed.harness.kit import Deed, Kit
from woodshed.harness.touched import touched
from woodshed.model import EventKind, Step, Task, Trajectory
from woodshed.model.acts import Act, acts_of, checks_after_edit
from woodshed.model.claim import admits

_SHOWN = 120
_AGAIN = " A second finish ends the attempt as it is."


@dataclass(frozen=True, slots=True)
class Standing:
    """A claim and its evidence. ``shown``: the command it names was seen to end like that after the last edit.

    ``checks`` counts the agent's own checks after its last edit; ``passed`` says that one of them did, ``looked`` that
    it read one of the files that it changed. ``missing`` is what to tell the agent; empty where there is evidence (any
    of these), or a failure is admitted.
    """

    claim: str
    admits: bool
    command: str | None
    exit_code: int | None
    shown: bool
    missing: str
    edited: bool
    checks: int
    passed: bool
    looked: bool


def standing(history: Sequence[Deed], task: Task, claim: str, command: str | None, exit_code: int | None) -> Standing:
    """How the claim stands after ``history``."""
    acts = _acts(history, task)
    checks, edited = checks_after_edit(acts)
    last_edit = max((act.call for act in acts if act.edits), default=0)
    passed = any(act.passed for act in checks)
    looked = _looked(history, acts)
    wrong = _wrong(history, task, command, exit_code, last_edit) if command else None
    shown = command is not None and wrong is None
    missing = wrong or ""
    if not command and not passed and (checks or not looked):
        missing = _unshown(history, edited, bool(checks))
    return Standing(claim, admitted := admits(claim), command, exit_code, shown,
                    "" if admitted or not missing else missing + _AGAIN, edited, len(checks), passed, looked)


def record(kit: Kit, found: Standing, *, ended: bool) -> None:
    """The event of it."""
    kit.emit(EventKind.FINISH, {**asdict(found), "missing": found.missing or None, "ended": ended})


def ended_by_words(kit: Kit, said: str) -> None:
    """An agent ended without ``finish``: its words are the claim."""
    record(kit, standing(kit.history, kit.task, said, None, None), ended=True)


def _acts(history: Sequence[Deed], task: Task) -> list[Act]:
    steps = tuple(Step(index=number, source="agent", tool_calls=(call,), observations=(seen,))
                  for number, (call, seen) in enumerate(history))
    did = Trajectory(attempt="", execution=1, task=task.id, agent="", steps=steps)
    return acts_of(did, touched(history), test_command=_test_command(task))


def _looked(history: Sequence[Deed], acts: Sequence[Act]) -> bool:
    """Whether, after its last edit, the agent read a file that it changed."""
    last = max((number for number, act in enumerate(acts) if act.edits), default=-1)
    names = {basename(path) for path in touched(history)}
    for act in acts[last + 1:]:
        call, seen = history[act.call - 1]
        words = f"{call.arguments.get('command', '')} {call.arguments.get('path', '')}"
        if seen.exit_code in (0, None) and (call.name == "diff" or any(name in words for name in names)):
            return last >= 0
    return False


def _test_command(task: Task) -> str:
    given = task.metadata.get("test_command")
    return given if isinstance(given, str) else ""


def _wrong(history: Sequence[Deed], task: Task, command: str, exit_code: int | None, last_edit: int) -> str | None:
    """What is wrong with the evidence, or None."""
    name = f"`{' '.join(command.split())[:_SHOWN]}`"
    ran = [(number, seen) for number, (call, seen) in enumerate(history, 1)
           if call.error is None and _is(call.name, call.arguments, command, task)]
    if not ran:
        return f"{name} was not run. Run it, then finish."
    number, seen = ran[-1]
    if number < last_edit:
        return f"{name} ran before your last change (as {seen.call}). Run it again, then finish."
    if seen.timed_out or seen.interrupted:
        return f"{name} did not come to its end (as {seen.call})."
    if seen.exit_code is not None and seen.exit_code != (exit_code or 0):
        return f"{name} ended with exit code {seen.exit_code} (as {seen.call}), not {exit_code or 0}."
    return None


def _is(name: str, arguments: dict[str, Any], command: str, task: Task) -> bool:
    """Whether this call ran ``command``, alone or as a part of more."""
    wanted = " ".join(command.split())
    if name == "run_tests":
        return wanted in ("run_tests", "run_tests()", " ".join(_test_command(task).split()))
    ran = arguments.get("command")
    return name != "finish" and isinstance(ran, str) and wanted in " ".join(ran.split())


def _unshown(history: Sequence[Deed], edited: bool, checked: bool) -> str:
    """What to tell an agent that names no command, and has no check of its own that passed."""
    if not history:
        return "Nothing was done yet."
    if checked:
        return ("What you ran to check after your last change failed. Mend it, or finish with the command that shows "
                "that the task is done, and its exit code.")
    if edited:
        return ("Nothing that you ran after your last change shows that it works. Run a command that does, then finish "
                "with that command and its exit code.")
    return ""
