"""Runs whose calls are captured: what a trainer is given is what the server generated, whoever asked for it."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from blackbox import AGENT
from capturekit import Truth, exported, held_against
from kit import EXAMPLES, woodshed
from tokenserver import VOCABULARY, Plays, TokenServer, call, tokens_served
from woodshed.model.rollout import CaptureLevel

TASK = EXAMPLES / "first-steps" / "write-file"
ATTEMPTS = int(os.environ.get("WOODSHED_TEST_ATTEMPTS", "100"))
"""Of the slow test: so many attempts are made."""
FINISH = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@pytest.fixture(scope="module")
def home(new_home: Callable[[], Path]) -> Path:
    """A state folder shared by this file's commands."""
    return new_home()


def solving(turns: int, ending: str = "") -> Plays:
    """Looks around for some turns, writes the file, says that it is done."""

    def plays(messages: Sequence[Mapping[str, Any]], chance: random.Random) -> str:
        said = sum(message["role"] == "assistant" for message in messages)
        words = " ".join(chance.choice(("the", "hello", "thing", "world", "and", "on")) for _ in range(8))
        if said < turns - 2:
            return words + call("bash", command=f"echo {words}")
        if said == turns - 2:
            return words + call("bash", command="echo 'hello world' > hello.txt")
        return f"done {words}" + (call("bash", command=ending) if ending else "")

    return plays


def of(server: TokenServer) -> Callable[[Sequence[int]], Sequence[Truth]]:
    """What its log says."""
    return lambda seeds: [Truth(one.prompt, one.completion, one.logprobs, len(one.prompt))
                          for one in server.delivered(seeds)]


def ran(home: Path, *arguments: str | Path, timeout: float = 600) -> tuple[dict[str, Any], str]:
    done = woodshed("run", TASK, *arguments, "--json", home=home, timeout=timeout)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return summary, done.stderr


def test_a_program_behind_the_door_is_captured_whole(home: Path, tmp_path: Path) -> None:
    """Answers are lost on the way and asked for again; each exported row holds what the server's log says, and no more.

    The level is told when the run begins, and the sampler that the program could not choose was neutral.
    """
    (tmp_path / "box.toml").write_text(
        'command = ["python3", "{home}/agent.py", "{instruction_file}"]\n[files]\n'
        f'"agent.py" = {json.dumps(AGENT)}\n')
    with tokens_served(solving(4), lost=0.3) as server:
        summary, told = ran(home, "--agent", f"external:{tmp_path / 'box.toml'}", "--model", server.model, "-n", "3",
                            "--capture", "auto", "--policy-version", "v7")
    assert "capture tokens+logprobs (vllm)" in told
    assert summary["agents"][0]["passed"] == 3
    rollouts = exported(home, summary["run"], tmp_path / "out", "--vocabulary", str(VOCABULARY))
    drift = sum((Counter(one["drift"]) for one in rollouts), Counter[str]())
    assert summary["capture"] == {
        "calls": {"tokens+logprobs": 12}, "drift": drift, "flawed_calls": 0, "flawed_attempts": 0}
    assert [(one["trainable"], one["capture_level"]) for one in rollouts] == [(True, CaptureLevel.LOGPROBS.value)] * 3
    assert held_against(of(server), home, summary["run"], rollouts, VOCABULARY) == 12
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


@pytest.mark.slow  # installs mini-swe-agent, and runs it so many times
def test_a_published_agent_is_captured_whole_every_time(home: Path, tmp_path: Path) -> None:
    """mini-swe-agent, six turns an attempt, a fifth of all answers lost: every attempt's rows are the server's log."""
    with tokens_served(solving(6, FINISH), lost=0.2) as server:
        summary, _ = ran(home, "--agent", "external:mini-swe-agent", "--model", server.model, "-n", str(ATTEMPTS),
                         "--capture", "auto", "--require-capture", "tokens+logprobs", "-c", "4", timeout=7200)
    rollouts = exported(home, summary["run"], tmp_path / "out", "--vocabulary", str(VOCABULARY))
    assert len(rollouts) == ATTEMPTS
    assert [one["untrainable"] for one in rollouts if not one["trainable"]] == []
    assert held_against(of(server), home, summary["run"], rollouts, VOCABULARY) == 6 * ATTEMPTS
    assert sum(not one.delivered for one in server.log) > ATTEMPTS / 2


@pytest.mark.slow  # a hundred attempts
def test_our_loop_is_captured_whole_every_time(home: Path, tmp_path: Path) -> None:
    """Twelve turns with long outputs in a small window, a fifth of all answers lost: rows are the server's log."""

    def plays(messages: Sequence[Mapping[str, Any]], chance: random.Random) -> str:
        if json.dumps(messages).count("seq ") < 9:
            return chance.choice(("the thing", "hello")) + call("bash", command=f"seq {chance.randrange(9)} 500")
        return "done" + (call("bash", command="echo 'hello world' > hello.txt") if "hello.txt -> exit 0" not in
                         json.dumps(messages) else call("finish", summary="done"))

    with tokens_served(plays, lost=0.2, context_tokens=14_000) as server:
        summary, _ = ran(home, "--agent", "loop", "--model", server.model, "-n", str(ATTEMPTS), "--turns", "14",
                         "--capture", "auto", "-c", "4", timeout=7200)
    rollouts = exported(home, summary["run"], tmp_path / "out", "--vocabulary", str(VOCABULARY))
    assert [one["untrainable"] for one in rollouts if not one["trainable"]] == []
    assert held_against(of(server), home, summary["run"], rollouts, VOCABULARY) > 9 * ATTEMPTS
    rewritten = sum(one["drift"].get("prompt", 0) + one["drift"].get("context", 0) for one in rollouts)
    assert rewritten > ATTEMPTS / 2
