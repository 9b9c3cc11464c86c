"""What the gateway's measurement asks, is answered, and counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from woodshed.errors import UsageError
from woodshed.gateway.capture import level, vllm
from woodshed.model.rollout import CaptureLevel
from woodshed.model.tokens import Tokens, flaws
from woodshed.services.benching import gateway, instant, lanes, litellm


def told(body: bytes) -> tuple[Tokens, dict[str, Any]]:
    head, _, content = instant.answer(body).partition(b"\r\n\r\n")
    assert int(head.rpartition(b" ")[2]) == len(content)
    answer = json.loads(content)
    return vllm.read(answer), answer["usage"]


def test_the_upstream_answers_as_vllm() -> None:
    """Every answer has ids and logprobs that validate, and a conversation goes on in the ids that it had."""
    before: tuple[int, ...] = ()
    for body in lanes.conversation(7):
        tokens, usage = told(body)
        assert level(tokens) is CaptureLevel.LOGPROBS
        assert flaws(tokens, vocabulary=instant.VOCABULARY, prompt_tokens=usage["prompt_tokens"],
                     completion_tokens=usage["completion_tokens"]) == ()
        assert tokens.prompt is not None
        assert tokens.prompt[:len(before)] == before
        assert len(tokens.prompt) > len(before)
        before = tokens.prompt
    other, _ = told(next(lanes.conversation(8)))
    assert other.prompt is not None
    assert other.prompt[0] != before[0]


def test_requests_are_conversations_that_begin_anew() -> None:
    """Each turn holds the one before; after the last another conversation begins, which nobody else has."""
    asking = lanes.requests(lanes.Target("http://127.0.0.1:1/r/a/v1", "key"))
    wholes = [next(asking) for _ in range(lanes.TURNS + 1)]
    assert all(one.startswith(b"POST /r/a/v1/chat/completions HTTP/1.1\r\n") for one in wholes)
    assert b"Authorization: Bearer key\r\n" in wholes[0]
    told_ = [json.loads(one.partition(b"\r\n\r\n")[2])["messages"] for one in wholes]
    assert [len(one) for one in told_[:lanes.TURNS]] == [2 + 2 * turn for turn in range(lanes.TURNS)]
    assert told_[1][:2] == told_[0]
    assert told_[-1] != told_[0]


def figures(rows: int, **load: float) -> dict[str, Any]:
    bench = gateway._Bench(gateway.Size(), Path(), frozenset(), frozenset(), Random(0), lambda _: None)
    latency = {"direct": [1.0, 1.1], "bare": [1.5], "gateway": [2.0, 2.1, 2.2]}
    loads = {name: [{"per_s": per_s, "cpu_ms": 1.0}] for name, per_s in load.items()}
    return bench._figures(latency, loads, {"answered": 100, "rows": rows}) | {"streams": None}


def test_only_what_is_durable_counts() -> None:
    """The rate is of requests whose rows were found: where a fifth is missing it is a fifth less, and an aim missed."""
    whole, short = figures(100, gateway=1000.0, bare=4000.0), figures(80, gateway=1000.0, bare=4000.0)
    assert (whole["requests_per_s"], short["requests_per_s"]) == (1000.0, 800.0)
    assert {row["name"]: row["met"] for row in gateway.targets(short)} == {
        "added_p50_ms": True, "requests_per_s": True, "litellm_ratio": None, "streams_mb": None, "not_durable": False}
    assert whole["added_p50_ms"] == 1.05
    assert whole["litellm_ratio"] is None
    assert figures(100, gateway=1000.0, bare=4000.0, litellm=100.0)["litellm_ratio"] == 10.0


def test_without_litellm_there_is_a_reason(tmp_path: Path) -> None:
    """Not asked for, the ratio is unknown and it is said why; a Python without it is refused."""
    found, missing = litellm.found(None, tmp_path, lambda _: None)
    assert found is None
    assert missing is not None
    assert litellm.REQUIREMENT in missing
    with pytest.raises(UsageError, match="does not have"):
        litellm.found(str(tmp_path / "python"), tmp_path, lambda _: None)


def test_litellm_is_started_with_a_key_of_its_own(tmp_path: Path) -> None:
    """Its key is in the environment and stands in no command line."""
    argv, target, env = litellm.command(litellm.Found(tmp_path / "python", "1"), "http://127.0.0.1:1/v1", tmp_path)
    assert target.key == env["LITELLM_MASTER_KEY"]
    assert not any(target.key in word for word in argv)


@pytest.mark.slow
def test_the_command_measures(tmp_path: Path) -> None:
    """A small run: every answered request is in the store after the gateway was killed, streams are weighed."""
    words = ("--samples", "5", "--requests", "60", "--rounds", "1", "--lanes", "4", "--streams", "40")
    saved = tmp_path / "gateway.json"
    done = subprocess.run([sys.executable, "-m", "woodshed", "bench", "gateway", *words, "--json", "--save", saved],
                          env={**os.environ, "WOODSHED_HOME": str(tmp_path)}, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads(saved.read_text())
    assert found["durable"]["rows"] == found["durable"]["answered"] == 31 + 6 + 60
    assert found["requests_per_s"] > 0
    assert found["litellm_ratio"] is None
    assert "--litellm" in found["not_found"]
    assert found["streams"]["rows"] == 40
    assert found["streams"]["process_mb"] < 400
    assert {"commit", "machine", "seed", "samples", "benchmark"} <= found.keys()
