"""The main job through the command line: verdicts, tables, JSON, traces, and nothing left behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import EXAMPLES, agent_row, leftovers, run_json, woodshed
from woodshed.model import Run
from woodshed.model.event import now
from woodshed.services.agents import build
from woodshed.services.runs import plan, planned, seed_of

FIRST_STEPS = EXAMPLES / "first-steps"


@pytest.fixture(scope="module")
def home(new_home: Callable[[], Path]) -> Path:
    """A state folder shared by this file's commands."""
    return new_home()


@pytest.fixture(scope="module")
def finished(home: Path) -> dict[str, object]:
    """One finished run of the first steps by the oracle and by nop, twice each."""
    return run_json(FIRST_STEPS, "--agent", "oracle", "--agent", "nop", "-n", "2", "-c", "3", home=home)


def test_every_example_is_passed_by_its_reference_and_not_by_doing_nothing(home: Path) -> None:
    """Over all examples the oracle passes all, nop passes none, and every attempt is valid."""
    summary = run_json(EXAMPLES, "--agent", "oracle", "--agent", "nop", "-c", "2", home=home)
    oracle, nop = agent_row(summary, "oracle"), agent_row(summary, "nop")
    tasks = len(list(EXAMPLES.glob("*/*/task.toml")))
    assert tasks >= 20
    rows = json.loads(woodshed("show", summary["run"], "--json", home=home).stdout)["results"]
    wrong = [(r["task"], r["agent"], r["cause"], r["flags"], r["detail"]) for r in rows
             if not r["valid"] or r["passed"] != (r["agent"] == "oracle")]
    assert not wrong
    assert (oracle["attempts"], oracle["valid"], oracle["passed"]) == (tasks, tasks, tasks)
    assert (nop["attempts"], nop["valid"], nop["passed"]) == (tasks, tasks, 0)
    assert leftovers(home) == []


def test_the_json_summary_has_the_stable_shape(finished: dict[str, object]) -> None:
    """``run --json`` ends with run, elapsed_s and a row an agent with the documented keys."""
    assert finished["state"] == "finished"
    assert isinstance(finished["elapsed_s"], float)
    row = agent_row(finished, "oracle")
    assert (row["attempts"], row["valid"], row["passed"], row["failed"]) == (20, 20, 20, 0)
    assert row["invalid"] == {}
    assert row["model"] is None
    assert row["pass_at_1"] == 1.0
    assert agent_row(finished, "nop")["pass_at_1"] == 0.0


def test_people_get_a_table_and_are_told_where_the_results_lie(home: Path, finished: dict[str, object]) -> None:
    """Without --json, show prints the closing table and every attempt."""
    shown = woodshed("show", str(finished["run"]), home=home).stdout
    assert "oracle" in shown
    assert "100.0 %" in shown
    assert shown.count("passed") >= 20
    assert (home / "runs" / str(finished["run"]) / "summary.json").is_file()
    lines = (home / "runs" / str(finished["run"]) / "attempts.jsonl").read_text().splitlines()
    assert len({json.loads(line)["attempt"] for line in lines}) == 40


def test_a_trace_tells_commands_exit_codes_diff_and_verdict(home: Path, finished: dict[str, object]) -> None:
    """The trace of an oracle attempt shows what it ran, what it changed, and how it was judged."""
    rows = json.loads(woodshed("show", str(finished["run"]), "--json", home=home).stdout)["results"]
    fixed = next(r["attempt"] for r in rows if r["agent"] == "oracle" and "fix-line" in r["task"])
    told = woodshed("trace", fixed, home=home).stdout
    assert "solve.sh" in told
    assert "exit 0" in told
    assert "+    return a + b" in told
    assert "verdict valid: passed" in told
    machine = json.loads(woodshed("trace", fixed, "--json", home=home).stdout)
    assert machine["verdict"]["kind"] == "valid"
    assert machine["steps"]


def test_runs_are_listed_and_the_last_one_has_a_name(home: Path, finished: dict[str, object]) -> None:
    """Show without a run lists all of them; ``last`` names the newest."""
    listed = json.loads(woodshed("show", "--json", home=home).stdout)["runs"]
    assert finished["run"] in {row["run"] for row in listed}
    last = json.loads(woodshed("show", "last", "--json", home=home).stdout)
    assert last["run"] == listed[0]["run"]


def test_the_same_seed_gives_the_same_seeds_to_attempts() -> None:
    """An attempt's seed depends on the run's seed, task and index alone: agents that are compared share it."""
    assert seed_of(1, "t", 0) == seed_of(1, "t", 0)
    assert len({seed_of(*question) for question in [(1, "t", 0), (2, "t", 0), (1, "u", 0), (1, "t", 1)]}) == 4
    spec, tasks = plan([EXAMPLES / "first-steps"], build(["oracle", "nop"], None), attempts=2, concurrency=1, seed=7,
                       engine="native")
    attempts = planned(Run(id="r", spec=spec, created_at=now()), tasks)
    of = {(one.agent, one.task, one.index): one.seed for one in attempts}
    assert all(of["oracle", task.id, index] == of["nop", task.id, index] for task in tasks for index in (0, 1))
    assert len(set(of.values())) == 2 * len(tasks)


def test_an_exported_attempt_is_an_atif_trajectory(home: Path, finished: dict[str, object], tmp_path: Path) -> None:
    """Export writes one ATIF 1.8 file for every finished attempt, and replaying one passes its task."""
    done = woodshed("export", str(finished["run"]), "--format", "atif", "--out", tmp_path, home=home)
    assert done.returncode == 0, done.stderr
    files = sorted(set(tmp_path.glob("*.json")) - {tmp_path / "card.json"})
    assert len(files) == 40
    assert all(json.loads(file.read_text())["schema_version"] == "ATIF-v1.8" for file in files)


def test_a_policy_binds_the_agent_and_not_the_verifier(home: Path, tmp_path: Path) -> None:
    """Where the agent may only read its workspace the reference changes nothing, and tests still run and say so."""
    policy = tmp_path / "policy.toml"
    policy.write_text('[[directories]]\npath = "/workspace"\naccess = "read"\n')
    task = EXAMPLES / "first-steps" / "write-file"
    summary = run_json(task, "--agent", "oracle", "--policy", policy, home=home)
    row = agent_row(summary, "oracle")
    assert (row["valid"], row["passed"]) == (1, 0)


def test_the_poisoned_verifier_states_its_assurance(home: Path) -> None:
    """The reference passes the poisoned run, and its verdict says that there was one."""
    task = EXAMPLES / "first-steps" / "write-file"
    summary = run_json(task, "--agent", "oracle", "--verifier", "poisoned", home=home)
    assert agent_row(summary, "oracle")["passed"] == 1
    shown = json.loads(woodshed("show", summary["run"], "--json", home=home).stdout)
    assert [result["assurance"] for result in shown["results"]] == ["poisoned"]


def test_a_run_takes_its_sandboxes_from_a_reserve(home: Path) -> None:
    """With sandboxes standing ready the results are the same, and nothing of the reserve is left."""
    task = EXAMPLES / "first-steps" / "write-file"
    summary = run_json(task, "--agent", "oracle", "-n", "6", home=home, env={"WOODSHED_WARM_SANDBOXES": "2"})
    assert agent_row(summary, "oracle")["passed"] == 6
    assert leftovers(home) == []


def test_a_trace_names_what_a_tool_of_the_host_would_run(home: Path, tmp_path: Path) -> None:
    """A git hook among the changes is flagged, for people and for programs."""
    task = tmp_path / "hooked"
    shutil.copytree(EXAMPLES / "first-steps" / "write-file", task)
    solve = task / "solution" / "solve.sh"
    solve.write_text(solve.read_text() + "\nmkdir -p .git/hooks && echo 'exit 0' >.git/hooks/post-checkout\n")
    summary = run_json(task, "--agent", "oracle", home=home)
    attempt = f"{summary['run']}.1"
    told = woodshed("trace", attempt, home=home).stdout
    assert "a tool may run it by itself: /workspace/.git/hooks/post-checkout" in told
    machine = json.loads(woodshed("trace", attempt, "--json", home=home).stdout)
    assert [line.partition(":")[0] for line in machine["flagged"]] == ["/workspace/.git/hooks/post-checkout"]


def test_a_policy_may_demand_its_engine(shed_home: Path, tmp_path: Path) -> None:
    """The engine that a policy names makes the sandboxes; another one that is asked for is refused."""
    file, task = tmp_path / "policy.toml", EXAMPLES / "first-steps" / "write-file"
    file.write_text('engine = "nowhere"\n')
    for words in (("run", task, "--agent", "nop", "--new"), ("sandbox", "run")):
        done = woodshed(*words, "--policy", file, *(("--", "true") if words[0] == "sandbox" else ()), home=shed_home)
        assert done.returncode == 2
        assert "nowhere" in done.stderr
    file.write_text('engine = "native"\n')
    assert woodshed("sandbox", "run", "--policy", file, "--", "true", home=shed_home).returncode == 0
    other = woodshed("run", task, "--agent", "nop", "--policy", file, "--engine", "gvisor", home=shed_home)
    assert other.returncode == 2
    assert "demands the engine 'native', and 'gvisor' was asked for" in other.stderr
