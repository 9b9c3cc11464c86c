"""The tools and players in a real sandbox: what the directory of the other tests cannot show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scripted import a_task, act, bash, said
from woodshed.harness.loop import Loop
from woodshed.harness.oracle import Oracle
from woodshed.interfaces import Sandbox
from woodshed.model import EnvironmentSpec, EventKind, SandboxPolicy, StopReason, Task, Upload
from woodshed.sandbox.native.engine import NativeEngine


@pytest.fixture
def task(tmp_path: Path) -> Task:
    start, solution = tmp_path / "start", tmp_path / "solution"
    start.mkdir()
    (start / "app.py").write_text("x = 1\n")
    (start / "run.sh").write_text("echo run\n")
    (start / "run.sh").chmod(0o755)
    solution.mkdir()
    (solution / "solve.sh").write_text("cp /solution/app.py . && echo $GREETING from $PWD\n")
    (solution / "app.py").write_text("x = 2\n")
    return a_task(tmp_path, solution=solution, solution_env={"GREETING": "hello"}, environment=EnvironmentSpec(
        uploads=(Upload(source=start, target="/workspace"),)))


@pytest.fixture
async def box(shed_home: Path, task: Task) -> AsyncIterator[Sandbox]:
    engine = NativeEngine(shed_home)
    try:
        yield await engine.create(task.environment, SandboxPolicy())
    finally:
        await engine.close()


def calls(*pairs: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return said("", *pairs, ("finish", {"summary": "I could not do more."}))


async def test_oracle_finds_its_folder_and_its_variables(tmp_path: Path, box: Sandbox, task: Task) -> None:
    """The reference runs beside its files, in the workdir."""
    done = await act(Oracle(), tmp_path, box=box, task=task)
    assert (done.stop, done.results) == (StopReason.FINISHED, ["hello from /workspace\n"])
    assert await box.read("/workspace/app.py") == b"x = 2\n"


async def test_tools_work_inside(tmp_path: Path, box: Sandbox, task: Task) -> None:
    """Reading, writing, editing, searching and diffing see the same files as the shell, and keep modes."""
    done = await act(Loop(), tmp_path, calls(
        ("read_file", {"path": "app.py"}), ("edit_file", {"path": "app.py", "old": "x = 1", "new": "x = 2"}),
        ("write_file", {"path": "run.sh", "content": "echo ran\n"}),
        ("write_file", {"path": "a/b.txt", "content": "b"}),
        ("bash", {"command": "./run.sh; cat app.py a/b.txt"}), ("search", {"pattern": "x ="}), ("diff", {}),
        ("bash", {"command": "rm app.py; ln -s /etc/passwd link"}), ("diff", {})), box=box, task=task)
    assert done.results[0] == "x = 1\n"
    assert done.results[4:6] == ["ran\nx = 2\nb", "./app.py:1:x = 2"]
    for line in ("-x = 1", "+x = 2", "-echo run", "+echo ran", "+++ b/workspace/a/b.txt"):
        assert line in done.results[6].splitlines()
    assert "link /workspace/link -> /etc/passwd" in done.results[8]
    assert "-x = 1" in done.results[8].splitlines()


async def test_hostile_paths_are_answers(tmp_path: Path, box: Sandbox, task: Task) -> None:
    """Links out, pipes, devices, long and strange names: each is answered, none breaks the attempt or hangs it."""
    paths = ["/proc/self/mem", "/dev/zero", "pipe", "loop", "x" * 300, "/" + "d/" * 3000, "../../../../etc/shadow", "",
             "/dev/null/x", "\n", "-rf"]
    made = bash("mkfifo pipe; ln -s loop loop; ln -s /dev/full full")
    reads = [("read_file", {"path": path}) for path in paths]
    writes = [("write_file", {"path": path, "content": "x"})
              for path in ("pipe", "loop", "full", "x" * 300, "/dev/null")]
    done = await act(Loop(), tmp_path, made, calls(*reads, *writes), box=box, task=task)
    assert done.stop is StopReason.FINISHED
    assert len(done.results) == 1 + len(reads) + len(writes) + 1
    assert all(done.results[1:-1])


async def test_a_command_that_outlives_its_time_is_killed_with_its_children(
    tmp_path: Path, box: Sandbox, task: Task
) -> None:
    """The tree is gone, what it printed is shown, and the next command works."""
    done = await act(
        Loop(), tmp_path, bash("echo begun; sh -c 'sleep 600; touch late' & sleep 600"),
        bash("ls; pgrep sleep || echo none"), said("", ("finish", {})), limits={"tool_timeout_s": 1}, box=box,
        task=task)
    assert done.of(EventKind.TOOL_RESULT)[0]["timed_out"]
    assert "begun" in done.results[0]
    assert "none" in done.results[1]


async def test_endless_output_is_bounded(tmp_path: Path, box: Sandbox, task: Task) -> None:
    """A hundred megabytes reach model and log as a clipped, marked text."""
    done = await act(Loop(), tmp_path, bash("head -c 100000000 /dev/zero | tr '\\0' x"), said("", ("finish", {})),
                     box=box, task=task)
    assert len(done.results[0]) < 17_000
    assert "left out" in done.results[0]
    assert done.of(EventKind.TOOL_RESULT)[0]["truncated"]
