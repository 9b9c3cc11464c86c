"""Runs whose calls are captured: what a trainer is given is what the server generated, whoever asked for it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from blackbox import AGENT
from kit import EXAMPLES, woodshed
from tokenserver import VOCABULARY, TokenServer, call, reader, tokens_served
from woodshed.model.rollout import CaptureLevel
from woodshed.services.history import history
from woodshed.services.home import opened
from woodshed.trainers.records import calls_of

TASK = EXAMPLES / "first-steps" / "write-file"
BOX = {"command": ["python3", "{home}/agent.py", "{instruction_file}"], "files": {"agent.py": AGENT}}


@pytest.fixture(scope="module")
def home(new_home: Callable[[], Path]) -> Path:
    """A state folder shared by this file's commands."""
    return new_home()


def solving(turns: int) -> Callable[[Sequence[Mapping[str, Any]], random.Random], str]:
    """Looks around for some turns, writes the file, says that it is done."""

    def plays(messages: Sequence[Mapping[str, Any]], chance: random.Random) -> str:
        said = sum(message["role"] == "assistant" for message in messages)
        words = " ".join(chance.choice(("the", "hello", "thing", "world", "and", "on")) for _ in range(8))
        if said < turns - 2:
            return f"{words} {call('bash', command=f'echo {words}')}"
        return words + call("bash", command="echo 'hello world' > hello.txt") if said == turns - 2 else f"done {words}"

    return plays


def learnt(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """The sampled ids of each row of a rollout, by the calls of the row."""
    return {",".join(row["calls"]): [one for one, mask in zip(row["token_ids"], row["loss_mask"], strict=True) if mask]
            for row in rows}


def held_against(server: TokenServer, home: Path, run: str, rollouts: Sequence[Mapping[str, Any]]) -> int:
    """Every rollout's rows hold exactly what the server generated for its attempt; how many calls there were."""
    counted = 0
    with opened(home) as place:
        for made in rollouts:
            attempt = place.store.attempt(made["attempt"])
            calls = calls_of(history(place, attempt), reader(place.blobs), vocabulary=VOCABULARY)
            truth = server.delivered([attempt.seed + number for number in range(200)])
            assert [record.completion_token_ids for record in calls.records] == [one.completion for one in truth]
            assert [record.prompt_token_ids for record in calls.records] == [one.prompt for one in truth]
            assert [record.logprobs for record in calls.records] == [one.logprobs for one in truth]
            by_call = dict(zip((record.call for record in calls.records), truth, strict=True))
            for names, ids in learnt(made["rows"]).items():
                assert ids == [one for name in names.split(",") for one in by_call[name].completion]
            assert sorted(name for row in made["rows"] for name in row["calls"]) == sorted(by_call)
            counted += len(truth)
    return counted


def exported(home: Path, run: str, out: Path) -> list[dict[str, Any]]:
    done = woodshed("export", run, "--format", "grpo", "--out", out, "--vocabulary", str(VOCABULARY), home=home)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for file in sorted((out / "data").iterdir()) for line in file.read_text().splitlines()]


def test_a_program_behind_the_door_is_captured_whole(home: Path, tmp_path: Path) -> None:
    """Answers are lost on the way and asked for again; each exported row holds what the server's log says, and no more.

    The level is told when the run begins, and the sampler that the program could not choose was neutral.
    """
    (tmp_path / "box.toml").write_text(_toml(BOX))
    with tokens_served(solving(4), lost=0.3) as server:
        done = woodshed("run", TASK, "--agent", f"external:{tmp_path / 'box.toml'}", "--model", server.model, "-n", "3",
                        "--capture", "auto", "--policy-version", "v7", "--json", home=home)
    assert done.returncode == 0, done.stderr
    assert "capture tokens+logprobs (vllm)" in done.stderr
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    assert summary["agents"][0]["passed"] == 3
    assert summary["capture"] == {"calls": {"tokens+logprobs": 12}, "flawed_calls": 0, "flawed_attempts": 0}
    rollouts = exported(home, summary["run"], tmp_path / "out")
    assert [(one["trainable"], one["capture_level"]) for one in rollouts] == [(True, CaptureLevel.LOGPROBS.value)] * 3
    assert held_against(server, home, summary["run"], rollouts) == 12
    assert len(server.log) > 13  # with the probe; some were sampled in vain
    sent = server.log[-1].body
    assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["min_p"]) == (1.0, 1.0, 0, 0.0)
    assert {version for row in rollouts[0]["rows"] for version in row["policy_versions"]} == {"v7"}


def test_a_level_that_is_not_reached_ends_it_before_it_begins(home: Path) -> None:
    """Exit 2 names the endpoint, what it tells and what was asked for; nothing ran."""
    with tokens_served(solving(2), told={"prompt_token_ids": None}) as server:
        done = woodshed("run", TASK, "--agent", "loop", "--model", server.model, "--require-capture", "tokens+logprobs",
                        home=home)
    assert done.returncode == 2
    assert "does not give tokens+logprobs: it tells text (vllm)" in done.stderr
    assert len(server.log) == 1


def _toml(fields: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items() if name != "files") + \
        "[files]\n" + "".join(f"{json.dumps(name)} = {json.dumps(text)}\n" for name, text in fields["files"].items())
