"""The public Python API is a list of names, each documented."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import woodshed
from kit import EXAMPLES, leftovers

ROOT = Path(__file__).parents[2]

NAMES = [
    "Agent", "AgentLimits", "Cause", "EnvironmentSpec", "Invalid", "Limits", "ModelSpec", "Sampling", "Sandbox",
    "SandboxEngine", "SandboxPolicy", "Task", "UsageError", "Valid", "WoodshedError", "engine", "find_tasks",
    "groups", "run",
]  # fmt: skip


def test_the_names_are_these() -> None:
    """A name is added or removed here on purpose, or not at all."""
    assert woodshed.__all__ == NAMES
    assert len(NAMES) <= 30


def test_every_name_says_what_it_is() -> None:
    """Each public name has a docstring of its own."""
    for name in NAMES:
        assert (getattr(woodshed, name).__doc__ or "").strip(), name


def test_a_run_from_python_gives_the_summary_of_the_command_line(tmp_path: Path) -> None:
    """``woodshed.run`` on tasks that ``find_tasks`` found returns agents with their figures."""
    tasks = woodshed.find_tasks([EXAMPLES / "first-steps" / "write-file"])
    summary = woodshed.run(tasks, ["oracle", "nop"], attempts=2, home=tmp_path)
    figures = {row["agent"]: (row["valid"], row["passed"]) for row in summary["agents"]}
    assert figures == {"oracle": (2, 2), "nop": (2, 0)}


def test_the_walk_through_a_sandbox_runs_as_it_stands(tmp_path: Path) -> None:
    """The program in docs/sandbox.md runs, prints what it says, and leaves nothing."""
    program = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "sandbox.md").read_text(), re.DOTALL)
    assert program is not None
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program[1]], capture_output=True, text=True, check=False,
        env={**os.environ, "WOODSHED_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "0 ready" in done.stdout
    assert "['notes', 'state']" in done.stdout
    assert "/workspace/notes\nyes" in done.stdout
    assert "stdout b'12\\n'" in done.stdout
    assert leftovers(tmp_path) == []
