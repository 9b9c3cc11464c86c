"""Agents of others, as they are published: each completes an example task through the gateway, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blackbox import answering, calling, recorded
from kit import EXAMPLES, agent_row, leftovers, run_json, woodshed
from woodshed.model import EventKind

pytestmark = pytest.mark.slow  # installing one takes minutes: hundreds of megabytes are unpacked and compiled
WRITE = "echo 'hello world' > hello.txt"
AGENTS: dict[str, list[dict[str, Any]]] = {
    "mini-swe-agent": [calling("bash", command=WRITE),
                       calling("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")],
    "qwen-code": [calling("run_shell_command", command=WRITE, description="write", is_background=False),
                  {"content": "done"}],
}


@pytest.mark.parametrize("agent", AGENTS)
def test_a_published_agent_completes_an_example(agent: str, new_home: Callable[[], Path]) -> None:
    """Unchanged, it solves the task in a sandbox without a network, fully traced, and its installation is kept."""
    if agent == "qwen-code" and not (shutil.which("npm") and str(shutil.which("node")).startswith("/usr")):
        pytest.skip("node and npm are not below /usr: install Node.js (Debian: apt install nodejs npm)")
    home, name = new_home(), f"external:{agent}"
    with answering(*AGENTS[agent]) as (model, heard):
        summary = run_json(EXAMPLES / "first-steps/write-file", "--agent", name, "--model", model, home=home,
                           timeout=1800)
        assert len(heard) == 2
        branched = woodshed("fork", f"{summary['run']}.1", "--step", "1", "--json", home=home, timeout=1800)
        assert branched.returncode == 0, branched.stderr
        assert len(heard) == 3  # what was answered then is not asked for again
    branch = agent_row(json.loads(branched.stdout), name)
    assert (branch["valid"], branch["passed"], branch["mean_turns"]) == (1, 1, 1.0)
    row = agent_row(summary, name)
    assert (row["valid"], row["passed"]) == (1, 1)
    events = recorded(summary["run"], home)
    assert [sum(event.kind is kind for event in events) for kind in (EventKind.MODEL_CALL, EventKind.MODEL_RESULT)] == [
        2, 2]
    calls = [event.data for event in events if event.kind is EventKind.TOOL_CALL]
    assert calls[0]["arguments"]["command"] == WRITE
    results = [event.data for event in events if event.kind is EventKind.TOOL_RESULT]
    assert (results[0]["call"], results[0]["exit_code"]) == (calls[0]["call"], 0)
    [changes] = [event.data for event in events if event.kind is EventKind.CHANGES]
    assert [change["path"] for change in changes["changes"]] == ["/workspace/hello.txt"]
    assert "Create a file named hello.txt" in json.dumps(heard[0]["messages"])
    assert leftovers(home) == []
    layers = {path.name for path in (home / "layers").iterdir()}
    with answering(*AGENTS[agent]) as (model, _):
        again = run_json(EXAMPLES / "first-steps/write-file", "--agent", name, "--model", model, home=home)
    assert agent_row(again, name)["passed"] == 1
    assert {path.name for path in (home / "layers").iterdir()} == layers
