"""The page on agents of others shows one that works: exactly its text is run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blackbox import answering, recorded
from kit import EXAMPLES, agent_row, run_json
from woodshed.harness.external import ExternalAgent
from woodshed.harness.external.spec import PLACES
from woodshed.model import EventKind

PAGE = (Path(__file__).parents[2] / "docs/external.md").read_text()
GATEWAY = (Path(__file__).parents[2] / "docs/gateway.md").read_text()


def block(name: str) -> str:
    """The text of the block that the page calls ``name``."""
    [text] = re.findall(rf"^```\w+ {re.escape(name)}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(text)


def test_the_agent_of_the_page_solves_an_example(tmp_path: Path, new_home: Callable[[], Path]) -> None:
    """Declared in fifteen lines, it completes a task through the gateway, and is traced."""
    text, home = block("my-agent.toml"), new_home()
    assert len([line for line in text.splitlines() if line.strip()]) <= 15
    (tmp_path / "my-agent.toml").write_text(text)
    name = f"external:{tmp_path / 'my-agent.toml'}"
    with answering({"content": "echo 'hello world' > hello.txt"}) as (model, heard):
        summary = run_json(EXAMPLES / "first-steps/write-file", "--agent", name, "--model", model, home=home)
    row = agent_row(summary, name)
    assert (row["valid"], row["passed"]) == (1, 1)
    assert heard[0]["messages"][0]["content"].startswith("Create a file named hello.txt")
    results = [event.data for event in recorded(summary["run"], home) if event.kind is EventKind.MODEL_RESULT]
    assert [data["content"] for data in results] == ["echo 'hello world' > hello.txt"]


def test_the_package_of_the_page_is_an_agent() -> None:
    """What a package would declare is a valid declaration, and its entry point is of the group that is looked at."""
    names: dict[str, Any] = {}
    exec(block("my_package.py"), names)
    assert isinstance(names["AGENT"], ExternalAgent)
    assert names["AGENT"].program is not None
    assert '[project.entry-points."woodshed.external"]' in block("pyproject.toml")


def test_every_field_and_place_stands_on_the_page() -> None:
    """Nothing can be declared that is not told, and nothing is told that cannot."""
    table = PAGE.partition("## Fields")[2].partition("\nIn `command`")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told == set(ExternalAgent.model_fields)
    assert set(re.findall(r"`\{(\w+)\}`", PAGE)) == set(PLACES)


def test_what_is_passed_on_stands_on_the_page() -> None:
    """The fields that reach an endpoint are told, each by its name."""
    from woodshed.gateway import server, wire

    for name in (*wire.PASSED, "tool_choice", "parallel_tool_calls", "seed"):
        assert f"`{name}`" in GATEWAY
    assert f"more than {server.MOST_RUNNING} calls" in GATEWAY
    assert f"{server.BODY_BYTES // 1_000_000} MB, {server.BODY_S:.0f} s" in GATEWAY
