"""The end of an attempt: what is claimed, what shows it, and what is answered when nothing does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripted import Attempt, a_task, act, bash, fenced, said
from woodshed.harness.finishing import standing
from woodshed.harness.kit import Deed
from woodshed.harness.loop import Loop
from woodshed.model import EventKind, Observation, StopReason, ToolCall

EDIT = ("write_file", {"path": "add.py", "content": "x = 1\n"}, 0)


def history(*deeds: tuple[str, dict[str, Any], int]) -> list[Deed]:
    return [(ToolCall(id=f"c{number}", name=name, arguments=arguments),
             Observation(call=f"c{number}", content="", exit_code=code))
            for number, (name, arguments, code) in enumerate(deeds)]


def ran(command: str, code: int = 0) -> tuple[str, dict[str, Any], int]:
    return "bash", {"command": command}, code


@pytest.mark.parametrize(("deeds", "command", "code", "missing"), [
    ((EDIT, ran("pytest -q")), "pytest -q", 0, ""),
    ((EDIT, ran("cd src &&  pytest -q | tail")), "pytest -q", None, ""),
    ((EDIT, ("run_tests", {}, 0)), "run_tests", 0, ""),
    ((EDIT, ran("pytest -q", 1)), "pytest -q", 1, ""),
    ((EDIT, ran("pytest -q")), "pytest -x", 0, "`pytest -x` was not run"),
    ((ran("pytest -q"), EDIT), "pytest -q", 0, "ran before your last change (as c0)"),
    ((EDIT, ran("pytest -q", 1)), "pytest -q", 0, "ended with exit code 1 (as c1), not 0"),
    ((EDIT, ran("pytest -q"), ran("pytest -q", 2)), "pytest -q", None, "ended with exit code 2 (as c2), not 0"),
    ((EDIT, ran("pytest -q")), None, None, ""),
    ((EDIT, ran("cat add.py")), None, None, ""),
    ((EDIT,), None, None, "Nothing that you ran after your last change"),
    ((EDIT, ran("ls")), None, None, "Nothing that you ran after your last change"),
    ((EDIT, ran("pytest -q", 1)), None, None, "check after your last change failed"),
    ((ran("grep -r todo ."),), None, None, ""),
    ((), None, None, "Nothing was done yet"),
])
def test_a_claim_is_held_against_what_was_done(
    tmp_path: Path, deeds: tuple[tuple[str, dict[str, Any], int], ...], command: str | None, code: int | None,
    missing: str,
) -> None:
    """The command must have run after the last edit, and ended as is said; without one, a check or a look will do."""
    found = standing(history(*deeds), a_task(tmp_path), "All done.", command, code)
    assert found.missing.startswith(missing) if not missing else missing in found.missing
    assert bool(found.missing) is bool(missing)
    assert found.shown is (command is not None and not missing)
    assert not found.missing or found.missing.endswith("A second finish ends the attempt as it is.")


def test_who_admits_a_failure_is_asked_for_nothing(tmp_path: Path) -> None:
    """Honesty costs no turn."""
    found = standing(history(EDIT), a_task(tmp_path), "I could not make the tests pass.", None, None)
    assert (found.admits, found.missing, found.edited, found.checks) == (True, "", True, 0)


def facts(done: Attempt) -> list[dict[str, Any]]:
    return done.of(EventKind.FINISH)


async def test_a_finish_without_evidence_is_answered_once(tmp_path: Path) -> None:
    """The first one says what is missing, in the log and to the model; the second one ends whatever it says."""
    wrote = said("", ("write_file", {"path": "a.py", "content": "1"}))
    done = await act(Loop(), tmp_path, wrote, said("", ("finish", {"summary": "ok"})))
    assert (done.stop, len(done.requests)) == (StopReason.FINISHED, 3)
    assert "Nothing that you ran" in done.requests[2]["messages"][-1]["content"]
    assert [(fact["ended"], bool(fact["missing"]), fact["edited"], fact["checks"]) for fact in facts(done)] == [
        (False, True, True, 0), (True, True, True, 0)]
    assert done.results[-1] == "ok"


async def test_a_finish_with_evidence_ends_at_once(tmp_path: Path) -> None:
    """Claim, command and exit code stand in the event, with whether they were seen to hold."""
    done = await act(Loop(), tmp_path, bash("echo 'print(1)' > a.py"), bash("python3 a.py"),
                     said("", ("finish", {"summary": "It prints.", "command": "python3 a.py", "exit_code": 0})))
    assert (done.stop, len(done.requests)) == (StopReason.FINISHED, 3)
    [fact] = facts(done)
    assert (fact["claim"], fact["command"], fact["exit_code"], fact["shown"], fact["missing"]) == (
        "It prints.", "python3 a.py", 0, True, None)
    assert (fact["checks"], fact["passed"], fact["ended"]) == (1, True, True)


async def test_an_end_by_words_is_recorded_and_not_held_up(tmp_path: Path) -> None:
    """DONE, and words after work that succeeded, are claims without a command."""
    for last in (said("DONE"), said("I made the file.")):
        done = await act(Loop(), tmp_path, fenced("touch made.txt"), last, dialect="text")
        assert done.stop is StopReason.FINISHED
        [fact] = facts(done)
        assert (fact["ended"], fact["command"], fact["edited"], fact["passed"]) == (True, None, True, False)
        assert fact["missing"]
