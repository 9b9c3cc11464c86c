"""OpenEnv's client, unmodified and in an environment of its own, drives attempts of a service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit import EXAMPLES
from otherpython import python_with
from woodshed.model.rollout import CallRecord, CaptureLevel, Rollout
from woodshed.trainers import projections

ROOT = Path(__file__).parents[2]
NEEDS = ("openenv==0.10.0",)
KEY = "the-key-of-this-very-test"
CALL = CallRecord(
    rollout="a-1", attempt="a", execution=1, call="m00001", model="m", prompt_token_ids=(1, 2),
    completion_token_ids=(3,), logprobs=(-0.5,), loss_mask=(1,), finish_reason="stop",
    capture_level=CaptureLevel.LOGPROBS)
ROLLOUT = Rollout(rollout="a-1", attempt="a", execution=1, task="t", agent="loop", index=0, reward=1.0, valid=True,
                  trainable=True, capture_level=CaptureLevel.LOGPROBS)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def openenv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has openenv. WOODSHED_TEST_OPENENV names one that is there already."""
    return python_with(tmp_path_factory.mktemp("openenv"), *NEEDS, variable="WOODSHED_TEST_OPENENV")


@contextmanager
def one_at_a_time(home: Path) -> Iterator[str]:
    """'woodshed serve' over the first steps, of which one may be acted at a time."""
    environment = {**os.environ, "WOODSHED_HOME": str(home), "WOODSHED_SERVE_KEY": KEY}
    server = subprocess.Popen(
        [sys.executable, "-m", "woodshed", "serve", "--tasks", str(EXAMPLES / "first-steps"), "--port", "0", "--json",
         "-c", "0", "--acted", "1"], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"]
    finally:
        server.terminate()
        server.communicate(timeout=600)


def test_the_real_client_drives_whole_attempts(openenv: Path, new_home: Callable[[], Path], tmp_path: Path) -> None:
    """Reset, tools, a verdict as the reward; mistakes are errors of the protocol; a dropped socket frees its place."""
    out, trace = tmp_path / "seen.json", tmp_path / "trace.json"
    trace.write_text(json.dumps(projections.openenv(ROLLOUT, [CALL])["trace"]))
    with one_at_a_time(new_home()) as url:
        done = subprocess.run([openenv, ROOT / "tests" / "openenvdrive.py", url, KEY, out, trace], capture_output=True,
                              text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(out.read_text())
    assert "hello" in seen["instruction"]
    assert (seen["begun"], seen["step"], seen["end"]) == ([None, False], [0, None, False], [1.0, True])
    assert (seen["state"]["episode_id"], seen["state"]["step_count"]) == ("ep1", 1)
    codes = [error.rpartition("(code: ")[2].rstrip(")") for error in seen["errors"]]
    assert codes == ["SESSION_ERROR", "VALIDATION_ERROR", "VALIDATION_ERROR", "CAPACITY_REACHED"]
    assert (seen["freed"], seen["sync"], seen["turns"]) == (False, 0.0, 1)
