"""nop, oracle and replay: harnesses without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localbox import LocalBox
from scripted import a_task, act, bash, said
from woodshed.errors import UsageError
from woodshed.harness.loop import Loop
from woodshed.harness.nop import Nop
from woodshed.harness.oracle import Oracle
from woodshed.harness.replay import Replay
from woodshed.interfaces import Harness
from woodshed.model import EventKind, StopReason, Task, Usage
from woodshed.trainers.atif import to_atif


def with_solution(folder: Path, script: str) -> Task:
    solution = folder / "solution"
    solution.mkdir()
    (solution / "solve.sh").write_text(script.replace("/solution", str(folder / "box" / "solution")))
    (solution / "answer.txt").write_text("42\n")
    return a_task(folder, solution=solution, solution_env={"GREETING": "hello"})


async def test_nop_changes_nothing(tmp_path: Path) -> None:
    """nop finishes and leaves the start as it was."""
    box = LocalBox(tmp_path / "box")
    box.begin({"a.txt": "a"})
    before = box.digest()
    done = await act(Nop(), tmp_path, box=box)
    assert (done.stop, box.digest(), done.acting.usage) == (StopReason.FINISHED, before, Usage())


async def test_oracle_plays_the_reference(tmp_path: Path) -> None:
    """The whole solution folder is there, the script runs in the workdir with its variables, and its output is kept."""
    task = with_solution(tmp_path, "cp /solution/answer.txt . && echo $GREETING && pwd")
    done = await act(Oracle(), tmp_path, task=task)
    assert done.stop is StopReason.FINISHED
    assert (tmp_path / "box/workspace/answer.txt").read_text() == "42\n"
    assert done.results == [f"hello\n{tmp_path}/box/workspace\n"]
    assert [call.arguments for call in done.trajectory.steps[0].tool_calls] == [
        {"command": "bash /solution/solve.sh"}]


async def test_oracle_says_when_the_reference_fails(tmp_path: Path) -> None:
    """A script that fails is its own stop reason, with its output in the log."""
    done = await act(Oracle(), tmp_path, task=with_solution(tmp_path, "echo broken >&2; exit 4"))
    assert done.stop is StopReason.SOLUTION_FAILED
    assert done.of(EventKind.TOOL_RESULT)[0]["exit_code"] == 4
    assert done.results == ["broken\n"]


async def test_oracle_is_bound_by_the_wall(tmp_path: Path) -> None:
    """A reference that does not end is killed at the wall limit."""
    done = await act(Oracle(), tmp_path, task=with_solution(tmp_path, "sleep 30"), deadline_s=0.3)
    assert done.stop is StopReason.WALL


async def test_oracle_without_a_reference_names_the_file(tmp_path: Path) -> None:
    """A task without a solution is the caller's mistake, and the message says which file is missing."""
    with pytest.raises(UsageError, match=r"solution/solve\.sh"):
        await act(Oracle(), tmp_path)


async def test_replay_does_again_what_the_loop_did(tmp_path: Path) -> None:
    """Our own trajectory and its ATIF export, replayed in a fresh directory, end in the same files."""
    start = {"app.py": "x = 1\n"}
    first = LocalBox(tmp_path / "first")
    first.begin(start)
    done = await act(
        Loop(), tmp_path, bash("echo made > made.txt"), said("", ("nonsense", {})), said("", ("bash", "{oops")),
        said("", ("edit_file", {"path": "app.py", "old": "1", "new": "2"}),
             ("write_file", {"path": "b", "content": "b"})),
        said("", ("finish", {})), box=first)
    (tmp_path / "ours.json").write_text(json.dumps(done.trajectory.to_json()))
    (tmp_path / "atif.json").write_text(json.dumps(to_atif(done.trajectory)))
    for name in ("ours", "atif"):
        again = LocalBox(tmp_path / name)
        again.begin(start)
        replayed = await act(Replay(tmp_path / f"{name}.json"), tmp_path, box=again)
        assert (replayed.stop, again.digest()) == (StopReason.FINISHED, first.digest())
        assert replayed.acting.usage.tool_calls == done.acting.usage.tool_calls - 2 == 5


async def test_replay_is_bound_by_limits(tmp_path: Path) -> None:
    """Declared limits bind a replay too."""
    steps = [{"step_id": 1, "source": "agent", "message": "", "tool_calls": [
        {"tool_call_id": str(n), "function_name": "bash_command", "arguments": {"command": "echo x >> log"}}
        for n in range(5)]}]
    (tmp_path / "t.json").write_text(json.dumps({"schema_version": "ATIF-v1.5", "steps": steps}))
    done = await act(Replay(tmp_path / "t.json"), tmp_path, limits={"tool_calls": 2})
    assert done.stop is StopReason.TOOL_CALLS
    assert (tmp_path / "box/workspace/log").read_text() == "x\nx\n"


def atif(**step: Any) -> str:
    return json.dumps({"schema_version": "ATIF-v1.8", "steps": [{"step_id": 1, "source": "agent", **step}]})


@pytest.mark.parametrize(("content", "needle"), [
    ("{oops", "is not JSON"),
    ("[]", "is a JSON object"),
    ("{}", "required, but missing"),
    ("[" * 100_000, "is not JSON"),
    (json.dumps({"attempt": "a", "execution": 1, "task": "t", "agent": "a", "stepz": []}), "Did you mean 'steps'"),
    (json.dumps({"schema_version": "ATIF-v9"}), "schema_version: unknown version 'ATIF-v9'"),
    (json.dumps({"schema_version": "ATIF-v1.8"}), "steps: required, and a list"),
    (json.dumps({"schema_version": "ATIF-v1.8", "steps": [3]}), r"steps\.0: a step is a JSON object"),
    (atif(tool_calls={}), r"steps\.0\.tool_calls: required, and a list"),
    (atif(tool_calls=["x"]), r"steps\.0\.tool_calls\.0: a tool call"),
    (atif(tool_calls=[{"arguments": {}}]), "function_name: required"),
    (atif(tool_calls=[{"function_name": "bash"}]), "arguments: required"),
    (atif(tool_calls=[{"function_name": "keystrokes", "arguments": {}}]), "there is no tool 'keystrokes'"),
])
def test_replay_refuses_what_is_no_trajectory(tmp_path: Path, content: str, needle: str) -> None:
    """A file that cannot be replayed is refused before anything runs, with file and field."""
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=needle) as caught:
        Replay(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("path", "needle"), [(None, "replay:FILE"), ("", "replay:FILE"), ("/no/such", "No such file")])
def test_replay_names_a_missing_file(path: str | None, needle: str) -> None:
    """No file, or one that is not there, is told as such."""
    with pytest.raises(UsageError, match=needle):
        Replay(path)


def test_every_harness_says_whether_it_needs_a_model(tmp_path: Path) -> None:
    """Only the loop needs one."""
    (tmp_path / "t.json").write_text(atif(message=""))
    harnesses: list[Harness] = [Nop(), Oracle(), Replay(tmp_path / "t.json"), Loop()]
    assert [harness.needs_model for harness in harnesses] == [False, False, False, True]


@pytest.mark.parametrize("harness", [Nop, Oracle, Loop])
def test_a_stray_argument_is_refused(harness: type[Nop] | type[Oracle] | type[Loop]) -> None:
    """``nop:x`` is a mistake, not a nop."""
    assert harness(None)
    with pytest.raises(UsageError, match="takes no argument"):
        harness("x")
