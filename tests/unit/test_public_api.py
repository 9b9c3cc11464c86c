"""The public Python API is a list of names, each documented."""

from __future__ import annotations

from pathlib import Path

import woodshed
from kit import EXAMPLES

NAMES = [
    "Agent", "AgentLimits", "Cause", "Invalid", "ModelSpec", "Sampling", "Task", "UsageError", "Valid", "WoodshedError",
    "find_tasks", "run",
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
