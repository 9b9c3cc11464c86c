"""pip is found wherever it is, and its answers become faults with an owner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from woodshed.errors import EnvironmentFault, ImageFault
from woodshed.sandbox.images import pip


def test_the_pip_that_comes_with_python_serves_where_none_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Virtual environments of some tools have no pip: the bundled wheel is unpacked and runs."""
    if not pip._bundled():
        pytest.skip("needs the pip wheel that Python bundles: install python3-venv or ensurepip")
    monkeypatch.setattr(pip, "_installed", lambda: None)
    runner = pip._runner(tmp_path)
    assert runner.is_relative_to(tmp_path)
    said = subprocess.run([sys.executable, "-I", "-c", pip._RUN, runner, "--version"], capture_output=True, check=True)
    assert said.stdout.startswith(b"pip ")
    assert str(tmp_path).encode() in said.stdout


def test_without_any_pip_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image fault says how to get pip."""
    monkeypatch.setattr(pip, "_installed", lambda: None)
    monkeypatch.setattr(pip, "_bundled", list)
    with pytest.raises(ImageFault, match="ensurepip"):
        pip._runner(tmp_path)


@pytest.mark.parametrize(("log", "kind", "what"), [
    ("ERROR: No matching distribution found for docopt>=0.6 (from x)\n", pip.NoWheel, "docopt>=0.6"),
    ("ERROR: No matching distribution found for a-b.c[x,y]==1.0; python_version > '3'", pip.NoWheel, "a-b.c[x,y]==1.0"),
    ("ERROR: No matching distribution found for plain\n", pip.NoWheel, "plain"),
    ("WARNING: Retrying (Retry(total=0)) after\nERROR: No matching distribution found for x", EnvironmentFault,
     "reached"),
    ("  Could not fetch URL http://i/x/: connection error: refused - skipping\nERROR: x", EnvironmentFault, "reached"),
    ("  Could not fetch URL http://i/x/: 404 Client Error: Not Found\nERROR: No matching distribution found for x",
     pip.NoWheel, "x"),
    ("ERROR: [Errno 28] No space left on device", EnvironmentFault, "disk is full"),
    ("ERROR: Cannot install a and b", ImageFault, "Cannot install"),
    ("Traceback: something else", ImageFault, "something else"),
])
def test_what_pip_says_becomes_the_right_fault(log: str, kind: type[EnvironmentFault], what: str) -> None:
    """A missing wheel names its requirement, network and disk trouble is the environment's, the rest the image's."""
    fault = pip._fault(log)
    assert type(fault) is kind
    assert what == fault.requirement if isinstance(fault, pip.NoWheel) else what in str(fault)


def test_passwords_in_pips_output_are_not_shown() -> None:
    """User and password of an index are struck out."""
    fault = pip._fault("Could not fetch URL https://me:hunter2@index/x/: connection error")
    assert "hunter2" not in str(fault)
    assert "me:" not in str(fault)
