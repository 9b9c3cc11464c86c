"""What holds for root holds for an ordinary user: the same tests, run again as one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from nobody import as_nobody, environment, python_for_all

TESTS = Path(__file__).parents[1]
AGAIN = (
    "conformance/test_sandbox_native.py", "security/test_native_attacks.py", "security/test_native_files.py",
    "unit/test_native_limits.py", "unit/test_native_parts.py", "unit/test_native_networks.py",
    "unit/test_native_mounts.py", "unit/test_native_snapshots.py",
)  # fmt: skip
LONGER = (
    "unit/test_native_roundtrip.py", "unit/test_native_guard.py", "unit/test_egress_proxy.py",
    "unit/test_native_commands.py", "unit/test_native_sessions.py", "unit/test_native_transfer.py",
    "unit/test_native_watch.py", "unit/test_native_archives.py", "unit/test_native_policy.py",
    "chaos/test_native_kill.py", "security/test_native_policy_attacks.py",
)  # fmt: skip
"""What conformance has said already in short."""


@pytest.mark.skipif(os.geteuid() != 0, reason="these tests run as an ordinary user already")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing: apt install util-linux")
@pytest.mark.parametrize("names", [AGAIN, pytest.param(LONGER, marks=pytest.mark.slow)], ids=["short", "longer"])
def test_an_ordinary_user_has_the_same(nobodys_folder: Path, names: tuple[str, ...]) -> None:
    """Conformance, attacks, round trips, limits and kills hold without any privilege."""
    python = python_for_all()
    if python is None:
        pytest.skip("no Python of this version that another user may run: install one below /usr")
    env = environment(nobodys_folder)
    if as_nobody(python, "-c", "import woodshed, pytest, pydantic", env=env).returncode:
        pytest.skip("the packages of this environment cannot be read by another user: put it below a public folder")
    done = as_nobody(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", f"--basetemp={nobodys_folder}/pytest",
        *(TESTS / name for name in names), env=env, cwd=TESTS.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
