"""What holds for root holds for an ordinary user: the same tests, run again as one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import woodshed

NOBODY = 65534
TESTS = Path(__file__).parents[1]
AGAIN = (
    "conformance/test_sandbox_native.py", "security/test_native_attacks.py", "security/test_native_files.py",
    "unit/test_native_roundtrip.py", "unit/test_native_limits.py", "unit/test_native_parts.py",
    "chaos/test_native_kill.py",
)  # fmt: skip


def as_nobody(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    # Through a shell: setpriv itself still holds root's capabilities when it looks the program up.
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", "sh", "-c", 'exec "$0" "$@"']
    return subprocess.run([*prefix, *map(str, command)], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def python_for_all() -> str | None:
    """A Python of our version that nobody may run: ours, or the system's."""
    tag = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/python{tag}", f"/usr/local/bin/python{tag}"):
        if Path(candidate).exists() and as_nobody(candidate, "-c", "pass").returncode == 0:
            return candidate
    return None


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of nobody's own: pytest's belong to root alone."""
    path = Path(tempfile.mkdtemp(prefix="woodshed-nobody-"))
    os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="these tests run as an ordinary user already")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing: apt install util-linux")
def test_an_ordinary_user_has_the_same(folder: Path) -> None:
    """Conformance, attacks, round trips, limits and kills hold without any privilege."""
    python = python_for_all()
    if python is None:
        pytest.skip(f"no Python {sys.version_info[:2]} that another user may run: install one below /usr")
    paths = [Path(woodshed.__file__).parents[1], *(Path(path) for path in sys.path if path.endswith("-packages"))]
    environment = {
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(folder), "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(folder),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
    }  # fmt: skip
    if as_nobody(python, "-c", "import woodshed, pytest, pydantic", env=environment).returncode:
        pytest.skip("the packages of this environment cannot be read by another user: put it below a public folder")
    done = as_nobody(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/pytest",
        *(TESTS / name for name in AGAIN), env=environment, cwd=TESTS.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
