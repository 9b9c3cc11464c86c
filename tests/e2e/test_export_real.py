"""Exports of runs in which everything is real but the model, whose server names its calls as servers do."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # stubs are no dependency of ours

from exportkit import rows_of
from kit import EXAMPLES, ROOT
from turnwise import Turnwise, serving
from woodshed.model import Agent, AgentLimits, ModelSpec, Run
from woodshed.model.fork import ForkSpec
from woodshed.services import forking, runs
from woodshed.services.exporting import Order, export
from woodshed.services.home import Home, opened
from woodshed.trainers.rules import ExportRules, SftRules

TASK = EXAMPLES / "first-steps" / "write-file"
SCHEMA = ROOT / "tests" / "unit" / "data" / "atif-1.8.schema.json"
HARBOR = "harbor==0.26.0"
READ = """\
import json, sys
from harbor.models.trajectories import Trajectory
schema = json.load(open(sys.argv[1]))
schema.pop("$comment")
assert Trajectory.model_json_schema() == schema, "the schema that is kept is not Harbor's"
for name in sys.argv[2:]:
    Trajectory.model_validate_json(open(name).read())
"""


class Naming(Turnwise):
    """Names each call anew, as servers do; every second answer to turn 2 of a conversation is the right one."""

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        told = super().answer(body)
        [call] = told["choices"][0]["message"]["tool_calls"]
        call["id"] = f"chatcmpl-tool-{len(self.requests):032x}"
        turn = 1 + sum(message["role"] == "assistant" for message in body["messages"])
        if turn == 2:
            text = "hello world" if self.asked[2] % 2 else "nothing"
            call["function"]["arguments"] = json.dumps({"command": f"echo '{text}' > hello.txt"})
        return told


def ignore(tally: runs.Tally) -> None:
    """Nobody looks."""


async def tried(home: Home, script: Naming) -> Run:
    """Two attempts by the loop, of which the second fails, and what the reference and an idle agent do."""
    limits = AgentLimits(turns=9, tool_calls=20)
    loop = Agent(name="loop", harness="loop", model=ModelSpec(name="turnwise", base_url=script.url), limits=limits)
    spec, tasks = runs.plan([TASK], [loop, Agent(name="nop", harness="nop"), Agent(name="oracle", harness="oracle")],
                            attempts=2, concurrency=1, seed=0, engine="native")
    return await runs.start(home, spec, tasks, ignore)


async def test_attempts_of_several_native_calls_make_pairs(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """Of one run, and of a fork's branch and what it went on from: both part after the same call and its result."""
    with opened(new_home()) as home, serving(Naming(2, lambda turn: "pwd")) as script:
        run = await tried(home, script)
        made = export(home, [run], Order("preference", tmp_path / "pairs"))
        assert made.card["dropped"] == {"attempts: no single conversation (compacted, or no model)": 4}  # nop, oracle
        [row] = rows_of(tmp_path / "pairs")
        assert [one["role"] for one in row["prompt"]] == ["system", "user", "assistant", "tool"]
        assert row["prompt"][2]["tool_calls"][0]["id"] == row["prompt"][3]["tool_call_id"] == "call00001"
        assert ["hello world" in json.dumps(row[side][0]) for side in ("chosen", "rejected")] == [True, False]

        fork = ForkSpec(attempt=row["rejected_attempt"], execution=1, step=1)
        spec, tasks = forking.plan(home, fork, (), attempts=1, concurrency=1)
        branch = await forking.start(home, spec, tasks, ignore)
        export(home, [run, branch], Order("preference", tmp_path / "forks"))
        pairs = {(one["chosen_attempt"], one["rejected_attempt"]) for one in rows_of(tmp_path / "forks")}
        assert (home.store.attempts(branch.id)[0].id, row["rejected_attempt"]) in pairs
        export(home, [run], Order("sft", tmp_path / "sft", rules=ExportRules(sft=SftRules(redone=2))))
        for example in rows_of(tmp_path / "sft"):
            asked = [call["id"] for one in (*example["prompt"], *example["completion"])
                     for call in one.get("tool_calls", ())]
            assert asked == [f"call{number:05d}" for number in range(1, len(asked) + 1)]
        validate = Draft202012Validator(json.loads(SCHEMA.read_text())).validate
        trajectories = export(home, [run, branch], Order("atif", tmp_path / "atif")).files[:-2]
        assert len(trajectories) == 7
        for file in trajectories:
            validate(json.loads(file.read_text()))


async def ran(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """This Python, with these arguments."""
    return await asyncio.to_thread(subprocess.run, [sys.executable, *arguments], capture_output=True, text=True,
                                   check=False, env={**os.environ, **env})


@pytest.mark.slow
async def test_harbor_itself_accepts_what_is_exported(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """Harbor's own model, in a folder of its own, reads each trajectory; the schema that the fast tests use is its."""
    done = await ran("-m", "pip", "install", "-q", "--no-deps", "--ignore-requires-python", "--target",
                     tmp_path / "harbor", HARBOR)
    if done.returncode:
        pytest.skip(f"needs {HARBOR} of the package index: pip failed ({done.stderr.strip()[-200:]})")
    with opened(new_home()) as home, serving(Naming(2, lambda turn: "pwd")) as script:
        files = export(home, [await tried(home, script)], Order("atif", tmp_path / "out")).files[:-2]
    assert len(files) == 6
    read = await ran("-c", READ, SCHEMA, *files, PYTHONPATH=str(tmp_path / "harbor"))
    assert read.returncode == 0, read.stderr
