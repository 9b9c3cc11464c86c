"""TRL's trainer, unmodified and in an environment of its own, learns from attempts of the rollout service."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES
from tokenserver import TokenServer, call, tokens_served

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "tests" / "trltrain.py"
NEEDS = ("torch==2.13.0", "trl==1.16.0", "datasets>=5,<6")
KEY = "the-key-of-this-very-test"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has TRL and this package. WOODSHED_TEST_TRL names one that is there already."""
    if given := os.environ.get("WOODSHED_TEST_TRL"):
        return Path(given)
    folder = tmp_path_factory.mktemp("trl")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    done = subprocess.run([folder / "bin" / "pip", "install", "-q", *NEEDS, "-e", ROOT], capture_output=True, text=True,
                          check=False)
    if done.returncode:
        pytest.skip(f"needs the packages {', '.join(NEEDS)}: pip failed ({done.stderr.strip()[-200:]})")
    return folder / "bin" / "python"


def sometimes(messages: Sequence[Mapping[str, Any]], chance: random.Random) -> str:
    """Half the attempts do the work, the others something else; one in four breaks under them."""
    kind = chance.random()
    if kind < 0.25:
        raise ConnectionAbortedError("as though the server had died")
    if any(message["role"] == "assistant" for message in messages):
        return "done"
    done = "echo 'hello world' > hello.txt; cp notes.txt backup.txt; cp *.txt backup/ 2>/dev/null; true"
    return call("bash", command=done if kind < 0.6 else "echo nothing")


@contextmanager
def service(home: Path, upstream: TokenServer) -> Iterator[str]:
    """'woodshed serve' over the first steps, and the endpoint 'policy'."""
    environment = {**os.environ, "WOODSHED_HOME": str(home), "WOODSHED_SERVE_KEY": KEY}
    server = subprocess.Popen(
        [sys.executable, "-m", "woodshed", "serve", "--tasks", str(EXAMPLES / "first-steps"), "--port", "0", "--json",
         "-c", "4", "--endpoint", f"policy={upstream.model}", "--capture", "auto"],
        env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"]
    finally:
        server.terminate()
        server.communicate(timeout=600)


def test_a_trainer_learns_from_whole_groups_and_from_nothing_that_broke(
    trl: Path, new_home: Callable[[], Path], tmp_path: Path
) -> None:
    """Two steps of GRPO: the ids are those that the server generated, an attempt that broke has no reward, no advantage

    and no id to learn from, and the others' advantages are those of a group without it.
    """
    out = tmp_path / "seen.json"
    with tokens_served(sometimes) as upstream, service(new_home(), upstream) as url:
        done = subprocess.run([trl, TRAIN, url, KEY, "2", out], capture_output=True, text=True, check=False,
                              env=os.environ | {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"})
        assert done.returncode == 0, done.stderr[-3000:]
        seen = json.loads(out.read_text())
        generated = {(one.prompt, one.completion) for one in upstream.log}
    assert seen["moved"] > 0
    rewards = [reward for step in seen["steps"] for reward in step["reward"]]
    assert set(rewards) == {0.0, 1.0, None}
    for step in seen["steps"]:
        for place in range(0, len(step["reward"]), 4):
            group = slice(place, place + 4)
            counted = [one for one in step["reward"][group] if one is not None]
            spread = statistics.stdev(counted) if len(counted) > 1 else 0.0
            for reward, advantage, mask in zip(step["reward"][group], step["advantages"][group],
                                               step["env_mask"][group], strict=True):
                if reward is None:
                    assert (advantage, sum(mask)) == (0.0, 0)
                else:
                    wanted = (reward - statistics.mean(counted)) / (spread + 1e-4)
                    assert advantage == pytest.approx(wanted, abs=1e-3)
                    assert sum(mask) > 0
        for prompt, completion, mask in zip(step["prompt_ids"], step["completion_ids"], step["env_mask"], strict=True):
            first = tuple(completion[: mask.index(0)] if 0 in mask else completion)
            assert not any(mask) or (tuple(prompt), first) in generated
