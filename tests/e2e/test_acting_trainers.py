"""TRL, verifiers and Gymnasium, unmodified, each in a virtual environment of its own, act attempts."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES

ROOT = Path(__file__).parents[2]
KEY = "the-key-of-this-very-test"
pytestmark = pytest.mark.slow


def python_with(folder: Path, variable: str, needs: Sequence[str]) -> Path:
    """A Python that has these and this package; the variable names one that is there already."""
    if given := os.environ.get(variable):
        return Path(given)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    done = subprocess.run([folder / "bin" / "pip", "install", "-q", *needs, "-e", ROOT], capture_output=True, text=True,
                          check=False)
    if done.returncode:
        pytest.skip(f"needs the packages {', '.join(needs)}: pip failed ({done.stderr.strip()[-200:]})")
    return folder / "bin" / "python"


@contextmanager
def acted(home: Path) -> Iterator[str]:
    """'woodshed serve' over the first steps, of which four may be acted at a time."""
    environment = {**os.environ, "WOODSHED_HOME": str(home), "WOODSHED_SERVE_KEY": KEY}
    server = subprocess.Popen(
        [sys.executable, "-m", "woodshed", "serve", "--tasks", str(EXAMPLES / "first-steps"), "--port", "0", "--json",
         "-c", "0", "--acted", "4"], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"]
    finally:
        server.terminate()
        server.communicate(timeout=600)


def driven(python: Path, script: str, home: Path, out: Path) -> dict[str, Any]:
    """What a script saw that acted against a service."""
    variables = {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    with acted(home) as url:
        done = subprocess.run([python, ROOT / "tests" / script, url, KEY, out], capture_output=True, text=True,
                              check=False, env=os.environ | variables)
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(out.read_text())
    return seen


def test_trl_acts_environments(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """Tools of sampled calls are carried out, each reward is a verdict, and advantages are those of the group."""
    python = python_with(tmp_path / "venv", "WOODSHED_TEST_TRL", ("torch==2.13.0", "trl==1.16.0", "datasets>=5,<6"))
    seen = driven(python, "trlacts.py", new_home(), tmp_path / "seen.json")
    assert seen["rewards"] == [0.0, 1.0, 0.0, 1.0]
    spread = math.sqrt(1 / 3)
    assert seen["advantages"] == pytest.approx([sign * 0.5 / (spread + 1e-4) for sign in (-1, 1, -1, 1)], abs=1e-3)
    assert "<tool_response>" in seen["told"]
    assert "no sandbox" not in seen["told"]


def test_gymnasium_checks_and_acts_attempts(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """Gymnasium's checker finds nothing to complain of, and an attempt ends with its verdict."""
    python = python_with(tmp_path / "venv", "WOODSHED_TEST_GYMNASIUM", ("gymnasium==1.4.0",))
    seen = driven(python, "gymdrive.py", new_home(), tmp_path / "seen.json")
    assert "hello" in seen["instruction"]
    assert seen["told"] == []
    assert (seen["first"], seen["last"], seen["valid"]) == ([0.0, False, False], [1.0, True, False], True)
    assert seen["read"] == "hello world\n"


def test_verifiers_runs_whole_attempts(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """A taskset and a harness over Woodshed's tasks: the reward is the verdict's; what cannot begin has an error."""
    python = python_with(tmp_path / "venv", "WOODSHED_TEST_VERIFIERS", ("verifiers==0.4.0",))
    seen = driven(python, "verifiersdrive.py", new_home(), tmp_path / "seen.json")
    assert (seen["reward"], seen["errors"], seen["verdict"]["passed"], seen["sampled"]) == (1.0, [], True, 2)
    assert seen["ok"] == [True, False]
    assert "no task 'nothing'" in " ".join(seen["broken"])
