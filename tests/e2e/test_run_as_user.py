"""The main job without any privilege."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from kit import EXAMPLES, leftovers
from nobody import as_nobody, environment, python_for_all


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing: apt install util-linux")
def test_an_ordinary_user_gets_the_same_verdicts_and_leaves_nothing(nobodys_folder: Path) -> None:
    """As nobody the oracle passes the first steps, nop passes none, all is valid, and nothing is left."""
    python = python_for_all()
    if python is None:
        pytest.skip("no Python of this version that another user may run: install one below /usr")
    env = environment(nobodys_folder)
    if as_nobody(python, "-c", "import woodshed, pydantic", env=env, cwd="/").returncode:
        pytest.skip("the packages of this environment cannot be read by another user: put it below a public folder")
    shutil.copytree(EXAMPLES / "first-steps", nobodys_folder / "tasks")
    home = nobodys_folder / "home"
    done = as_nobody(
        python, "-m", "woodshed", "run", nobodys_folder / "tasks",
        "--agent", "oracle", "--agent", "nop", "-n", "2", "--json",
        env={**env, "WOODSHED_HOME": str(home)}, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    figures = {row["agent"]: (row["attempts"], row["valid"], row["passed"]) for row in summary["agents"]}
    assert figures == {"oracle": (20, 20, 20), "nop": (20, 20, 0)}
    assert leftovers(home) == []
    assert home.stat().st_mode & 0o077 == 0
