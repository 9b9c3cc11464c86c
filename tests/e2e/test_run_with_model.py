"""The loop through the command line, over real HTTP: a good model, a mad one, a busy one, and its key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES, agent_row, run_json, woodshed
from loopback import Asked, listening

TASK = EXAMPLES / "first-steps" / "write-file"
Answer = Callable[[dict[str, Any], int], tuple[int, dict[str, str], bytes]]


@pytest.fixture(scope="module")
def home(new_home: Callable[[], Path]) -> Path:
    """A state folder shared by this file's commands."""
    return new_home()


@contextmanager
def endpoint(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """A server on loopback; its address as --model wants it, and the Authorization headers it saw."""
    seen: list[str] = []

    def post(asked: Asked) -> None:
        seen.append(asked.headers.get("Authorization", ""))
        status, headers, content = answer(json.loads(asked.body()), len(seen))
        asked.say(content, status, headers)

    with listening(post) as url:
        yield f"tiny@{url}/v1", seen


def said(text: str) -> tuple[int, dict[str, str], bytes]:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 40, "completion_tokens": 9}
    answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    return 200, {"Content-Type": "application/json"}, json.dumps(answer).encode()


def solving(body: dict[str, Any], number: int) -> tuple[int, dict[str, str], bytes]:
    """Writes the file, then says that it is done."""
    own = [message for message in body["messages"] if message["role"] == "assistant"]
    return said("DONE" if own else "```bash\necho 'hello world' > hello.txt\n```")


def test_a_model_that_solves_the_task_passes_and_its_tokens_are_counted(home: Path) -> None:
    """The loop carries out the model's command, the verdict is valid and passed, the trace shows the step."""
    with endpoint(solving) as (model, _):
        summary = run_json(TASK, "--agent", "loop", "--model", model, "--dialect", "text", home=home)
    row = agent_row(summary, "loop")
    assert (row["model"], row["passed"], row["valid"]) == ("tiny", 1, 1)
    assert row["tokens"] > 0
    told = json.loads(woodshed("trace", f"{summary['run']}.1", "--json", home=home).stdout)
    assert any("hello.txt" in json.dumps(step["tool_calls"]) for step in told["steps"])
    assert "+hello world" in told["diff"]


def test_a_model_that_answers_garbage_is_invalid_and_harms_no_neighbour(home: Path) -> None:
    """An endpoint that speaks no protocol makes its attempts invalid by model_api; the oracle beside them passes."""
    with endpoint(lambda body, number: (200, {}, b"<html>not json</html>")) as (model, _):
        summary = run_json(TASK, "--agent", "loop", "--agent", "oracle", "--model", model, home=home)
    assert agent_row(summary, "loop")["invalid"] == {"model_api": 1}
    assert agent_row(summary, "loop")["pass_at_1"] is None
    assert agent_row(summary, "oracle")["passed"] == 1


def test_a_busy_endpoint_is_asked_again_when_it_said(home: Path) -> None:
    """A 429 with Retry-After is waited out; the attempt passes."""

    def busy_once(body: dict[str, Any], number: int) -> tuple[int, dict[str, str], bytes]:
        return (429, {"Retry-After": "1"}, b"{}") if number == 1 else solving(body, number)

    with endpoint(busy_once) as (model, seen):
        summary = run_json(TASK, "--agent", "loop", "--model", model, "--dialect", "text", home=home)
    assert agent_row(summary, "loop")["passed"] == 1
    assert len(seen) == 3


def test_a_refused_key_is_told_without_the_key(home: Path) -> None:
    """A 401 makes the attempt invalid by model_api, and the message names the variable's remedy, not its value."""
    with endpoint(lambda body, number: (401, {}, b'{"error": {"message": "bad key"}}')) as (model, _):
        summary = run_json(
            TASK, "--agent", "loop", "--model", model, "--model-key", "TINY_KEY", home=home,
            env={"TINY_KEY": "sk-hidden-1"},
        )  # fmt: skip
    assert agent_row(summary, "loop")["invalid"] == {"model_api": 1}
    shown = json.loads(woodshed("show", summary["run"], "--json", home=home).stdout)["results"][0]["detail"]
    assert "ModelRefused" in shown
    assert "sk-hidden-1" not in shown


def test_the_key_reaches_the_endpoint_and_nothing_else(tmp_path: Path) -> None:
    """The key stands in the request (the control) and nowhere in the state folder, the output, or the sandbox."""
    key = "sk-very-secret-0123456789"

    def curious(body: dict[str, Any], number: int) -> tuple[int, dict[str, str], bytes]:
        return said("```bash\nenv; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; echo hello world > hello.txt\n```"
                    if number == 1 else "DONE")

    with endpoint(curious) as (model, seen):
        done = woodshed(
            "run", TASK, "--agent", "loop", "--model", model, "--model-key", "TINY_KEY", "--dialect", "text",
            home=tmp_path, env={"TINY_KEY": key},
        )  # fmt: skip
        told = woodshed("trace", "last", home=tmp_path, env={"TINY_KEY": key})
    assert done.returncode == 0, done.stderr
    assert seen[0] == f"Bearer {key}"
    assert "PATH=" in told.stdout
    assert key not in done.stdout + done.stderr + told.stdout + told.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 10
    assert [path for path in files if key.encode() in path.read_bytes()] == []
