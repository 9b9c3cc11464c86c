"""The tools and players in a real sandbox: what the directory of the other tests cannot show."""

from __future__ import annotations

import re
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


async def test_a_shell_that_stays_keeps_its_place(tmp_path: Path, box: Sandbox, task: Task) -> None:
    """Directory, variables and functions hold from call to call; a time limit asked for is held, and it lives on."""
    done = await act(
        Loop(), tmp_path, calls(
            ("shell", {"command": "mkdir -p deep && cd deep && WORD=kept"}),
            ("shell", {"command": "echo $WORD in $PWD"}),
            ("shell", {"command": "echo begun; sleep 60", "timeout_s": 0.5}), ("shell", {"command": "echo $WORD"})),
        box=box, task=task, tools=("default", "session"))
    assert done.results[1] == "kept in /workspace/deep"
    assert "begun" in done.results[2]
    assert done.of(EventKind.TOOL_RESULT)[2]["timed_out"]
    assert done.results[3] == "kept"


async def test_jobs_run_on_are_read_waited_for_and_ended(tmp_path: Path, box: Sandbox, task: Task) -> None:
    """A job goes on beside other calls; its output comes in parts; what is still running at the end is ended."""
    wait = "while ! test -e go; do sleep 0.05; done; echo went; exit 3"
    done = await act(
        Loop(), tmp_path, calls(
            ("start_job", {"command": f"echo begun; {wait}"}), ("wait_job", {"job": "job1", "timeout_s": 0.3}),
            ("bash", {"command": "touch go"}), ("wait_job", {"job": "job1"}),
            ("read_job", {"job": "job1", "offset": 6}),
            ("start_job", {"command": "sleep 1000"}), ("kill_job", {"job": "job2"}), ("read_job", {"job": "job3"}),
            ("start_job", {"command": "echo $$ > pid; exec sleep 1000"}),
            ("bash", {"command": "while ! test -s pid; do sleep 0.05; done"})),
        box=box, task=task, tools=("default", "jobs"))
    assert done.results[0] == "job1 is running."
    assert re.fullmatch(r"\[it is running, for [\d.]+ s; 6 characters of output\]\nbegun\n", done.results[1])
    assert done.results[3] == "[it ended with exit code 3; 11 characters of output]\nbegun\nwent\n"
    assert done.results[4] == "[it ended with exit code 3; 11 characters of output]\nwent\n"
    assert done.results[6] == "job2 ended with exit code 137."
    assert done.results[7] == "There is no job 'job3'. Jobs: job1, job2."
    assert (await box.exec("kill -0 $(cat pid)")).exit_code != 0


async def test_no_shell_where_its_directory_is_gone_is_an_answer(tmp_path: Path, box: Sandbox, task: Task) -> None:
    """What an agent does to its sandbox makes no attempt of its own invalid: the tools say what is wrong."""
    done = await act(
        Loop(), tmp_path, calls(
            ("bash", {"command": "cd / && rm -rf /workspace"}), ("shell", {"command": "pwd"}),
            ("start_job", {"command": "pwd"}), ("bash", {"command": "true"})),
        box=box, task=task, tools=("default", "session", "jobs"))
    assert done.stop is StopReason.FINISHED
    assert done.results[1].startswith("shell: ")
