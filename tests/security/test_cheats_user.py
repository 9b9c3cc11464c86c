"""What earns nothing from root's verifier earns nothing from an ordinary user's: the same cheats, played as one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from nobody import as_nobody, environment, python_for_all

TESTS = Path(__file__).parents[1]
SUITES = ("test_cheats.py", "test_evasions.py")


@pytest.mark.skipif(os.geteuid() != 0, reason="the cheats are played as an ordinary user already")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing: apt install util-linux")
@pytest.mark.parametrize("which", [
    "conftest-hook or exit-on-import or selective-flip",
    pytest.param("", marks=pytest.mark.slow),
], ids=["three", "all"])
def test_an_ordinary_users_verifier_pays_no_cheat(nobodys_folder: Path, which: str) -> None:
    """Each cheat has its control and its valid 0 where nobody has a privilege; three of them are tried every time."""
    python = python_for_all()
    if python is None:
        pytest.skip("no Python of this version that another user may run: install one below /usr")
    env = environment(nobodys_folder)
    if as_nobody(python, "-c", "import woodshed, pytest, pytest_asyncio, pydantic", env=env).returncode:
        pytest.skip("the packages of this environment cannot be read by another user: put it below a public folder")
    done = as_nobody(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={nobodys_folder}/pytest", "-k", which,
        *(TESTS / "security" / name for name in SUITES), env=env, cwd=TESTS.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
