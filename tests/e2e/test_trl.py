"""TRL's trainer, unmodified and in an environment of its own, learns from attempts of the rollout service."""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import struck
from kit import EXAMPLES
from tokenserver import TokenServer, call, tokens_served
from trlkit import python_with_trl
from woodshed.services.benching import faulty
from woodshed.services.home import opened

ROOT = Path(__file__).parents[2]
TRAIN, PROOF = ROOT / "tests" / "trltrain.py", ROOT / "tests" / "trlproof.py"
KEY = "the-key-of-this-very-test"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has TRL and this package."""
    return python_with_trl(tmp_path_factory.mktemp("trl"))


def sometimes(messages: Sequence[Mapping[str, Any]], chance: random.Random) -> str:
    """Half the attempts do the work, the others something else; one in four breaks under them."""
    kind = chance.random()
    if kind < 0.25:
        raise ConnectionAbortedError("as though the server had died")
    if any(message["role"] == "assistant" for message in messages):
        return "done"
    done = "echo 'hello world' > hello.txt; cp config.example.ini config.ini 2>/dev/null; true"
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
    assert {reward for step in seen["steps"] for reward in step["reward"]} == {0.0, 1.0, None}
    assert seen["moved"] > 0
    for step in seen["steps"]:
        for place in range(0, len(step["reward"]), 8):
            group = slice(place, place + 8)
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


def numbers(messages: Sequence[Mapping[str, Any]], chance: random.Random) -> str:
    """Two in five write the number that is asked for; of the others' server, some die."""
    kind = chance.random()
    asked = re.search(r"Write the number (\d+)", " ".join(str(one.get("content")) for one in messages))
    if asked is None or any(message["role"] == "tool" for message in messages):
        return "done"
    if kind < 0.06:
        raise ConnectionAbortedError("as though the server had died")
    return call("bash", command=f"echo {asked[1] if kind < 0.45 else 'nothing'} > /workspace/answer.txt")


def broken_run(home: Path, folder: Path, model: str) -> None:
    """Eight attempts of each of eight tasks; sandboxes, verifiers and the model fail, one of two workers is killed."""
    faulty.tasks(folder / "tasks", 8)
    retry = folder / "retry.toml"
    retry.write_text("infrastructure = 0\nmodel = 0\nbreaker = false\n")
    environment = {**os.environ, **struck.installed(folder / "site", 0.12, 3), "WOODSHED_HOME": str(home)}
    woodshed = [sys.executable, "-m", "woodshed"]
    subprocess.run([*woodshed, "run", folder / "tasks", "-a", "loop", "--model", model, "-n", "8", "--engine", "struck",
                    "--verifier", "struck", "--capture", "auto", "--retry", retry, "--deadline", "prepare=5s",
                    "--deadline", "verify=20s", "--detach"], env=environment, check=True, capture_output=True)
    work = [*woodshed, "worker", "--slots", "4", "--until-empty"]
    first, second = (subprocess.Popen(work, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                     for _ in range(2))
    with opened(home) as shed:
        run = shed.store.run("last")
        while sum(one.outcome is not None for one in shed.store.attempts(run.id)) < 20:
            assert first.poll() is None
            time.sleep(0.2)
        first.kill()
        first.wait()
    assert second.wait(timeout=900) == 0


def test_what_breaks_moves_no_update(trl: Path, new_home: Callable[[], Path], tmp_path: Path) -> None:
    """With three in ten executions broken, TRL's advantages and update are those of the survivors alone.

    The control: where what broke counts as zero, as elsewhere, the same groups make another update.
    """
    home, out = new_home(), tmp_path / "seen.json"
    with tokens_served(numbers) as upstream:
        broken_run(home, tmp_path, upstream.model)
    exported = subprocess.run([sys.executable, "-m", "woodshed", "export", "last", "--format", "grpo", "--out",
                               tmp_path / "data"], env=os.environ | {"WOODSHED_HOME": str(home)}, check=False,
                              capture_output=True, text=True)
    assert exported.returncode == 0, exported.stderr
    [rows] = (tmp_path / "data").rglob("*.jsonl")
    done = subprocess.run([trl, PROOF, rows, out], capture_output=True, text=True, check=False,
                          env=os.environ | {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(out.read_text())
    assert seen["attempts"] == 64
    broken = sum(seen["broken"].values())
    assert 0.15 < broken / 64 < 0.5
    assert len(seen["broken"]) >= 3
    assert seen["survivors"] == pytest.approx(
        {one: advantage for one, advantage in seen["advantages"].items() if one in seen["survivors"]}, abs=1e-5)
    assert len(seen["survivors"]) == 64 - broken
    assert all(seen["advantages"][one] == 0 for one in seen["advantages"].keys() - seen["survivors"].keys())
    assert seen["update"] > 0
    assert seen["apart"] < 1e-4
    assert seen["apart_with_zeros"] > 0.1
