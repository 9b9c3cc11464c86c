"""TRL, verifiers and Gymnasium, unmodified, each in a virtual environment of its own, act attempts."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES
from otherpython import python_with
from trlkit import python_with_trl

ROOT = Path(__file__).parents[2]
KEY = "the-key-of-this-very-test"
pytestmark = pytest.mark.slow


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
    python = python_with_trl(tmp_path / "venv")
    seen = driven(python, "trlacts.py", new_home(), tmp_path / "seen.json")
    assert seen["rewards"] == [0.0, 1.0, 0.0, 1.0]
    spread = math.sqrt(1 / 3)
    assert seen["advantages"] == pytest.approx([sign * 0.5 / (spread + 1e-4) for sign in (-1, 1, -1, 1)], abs=1e-3)
    assert "<tool_response>" in seen["told"]
    assert "no sandbox" not in seen["told"]


def test_gymnasium_checks_and_acts_attempts(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """Gymnasium's checker finds nothing to complain of, and an attempt ends with its verdict."""
    python = python_with(tmp_path / "venv", "gymnasium==1.4.0", "-e", f"{ROOT}[gymnasium]",
                         variable="WOODSHED_TEST_GYMNASIUM")
    seen = driven(python, "gymdrive.py", new_home(), tmp_path / "seen.json")
    assert "hello" in seen["instruction"]
    assert seen["told"] == []
    assert (seen["first"], seen["last"], seen["valid"]) == ([0.0, False, False], [1.0, True, False], True)
    assert seen["read"] == "hello world\n"


def test_verifiers_runs_whole_attempts(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """A taskset and a harness over Woodshed's tasks: the reward is the verdict's; what cannot begin has an error."""
    python = python_with(tmp_path / "venv", "verifiers==0.4.0", "-e", f"{ROOT}[verifiers]",
                         variable="WOODSHED_TEST_VERIFIERS")
    seen = driven(python, "verifiersdrive.py", new_home(), tmp_path / "seen.json")
    assert (seen["reward"], seen["errors"], seen["verdict"]["passed"], seen["sampled"]) == (1.0, [], True, 2)
    assert seen["ok"] == [True, False]
    assert "no task 'nothing'" in " ".join(seen["broken"])
