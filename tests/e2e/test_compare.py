"""``woodshed compare`` as a command: agents run at tasks, then read again from the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import EXAMPLES, woodshed

TASKS = [EXAMPLES / "first-steps" / name for name in ("write-file", "make-folder")]


@pytest.mark.slow
def test_agents_run_at_tasks_are_compared_and_read_again_the_same(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """The reference beats nobody at both tasks, two are too few to decide, and the run read later tells the same."""
    home, page = new_home(), tmp_path / "page.html"
    done = woodshed("compare", *TASKS, "--agent", "oracle", "--agent", "nop", "-n", "2", "--html", page, "--json",
                    home=home)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.strip().splitlines()[-1])
    [pair] = told["pairs"]
    assert (pair["a"], pair["b"], pair["wins"], pair["tries"], pair["difference"]) == ("oracle", "nop", 2, 4, 1.0)
    assert (pair["decided"], pair["more_attempts"], pair["more_tasks"]) == ("noise", None, 4)
    assert page.read_text().startswith("<!doctype html>")
    again = woodshed("compare", told["runs"][0], "--json", home=home)
    assert json.loads(again.stdout) == told
    alone = woodshed("compare", "last", "--agent", "nop", home=home)
    assert alone.returncode == 2
    assert "fewer than two agents" in alone.stderr
