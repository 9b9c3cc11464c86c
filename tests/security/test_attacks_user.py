"""What is stopped for root's engine is stopped for an ordinary user's: the same attacks, run as one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from nobody import as_nobody, environment, python_for_all

TESTS = Path(__file__).parents[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="these attacks run as an ordinary user already")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing: apt install util-linux")
def test_an_ordinary_users_engine_stops_the_same(nobodys_folder: Path) -> None:
    """Every attack that needs no root is stopped, and succeeds without its defence, where nobody has a privilege."""
    python = python_for_all()
    if python is None:
        pytest.skip("no Python of this version that another user may run: install one below /usr")
    env = environment(nobodys_folder)
    if as_nobody(python, "-c", "import woodshed, pytest, pydantic", env=env).returncode:
        pytest.skip("the packages of this environment cannot be read by another user: put it below a public folder")
    done = as_nobody(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={nobodys_folder}/pytest",
        TESTS / "security" / "test_attacks.py", env=env, cwd=TESTS.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
