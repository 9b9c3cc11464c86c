"""Reward rules through the command line: a run by one file, regraded by others; exit codes; what a bad file gets."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES, run_json, woodshed
from woodshed.services import regrading, report, rulesets
from woodshed.services.home import opened

TASK = EXAMPLES / "first-steps" / "fix-line"
RULES = """
[[rules]]
kind = "tests"
mode = "fraction"
weight = 3

[[rules]]
kind = "patch_size"
weight = 1

[[rules]]
kind = "check"
name = "compiles"
command = "python3 -m py_compile *.py"
gate = true
""" + "".join(f'[[rules]]\nkind = "{kind}"\nweight = 0\n' for kind in (
    "verified_before_finish", "claim_matches", "unsafe_actions", "no_regression"))
LINT = '\n[[rules]]\nkind = "check"\nname = "lint"\ncommand = "ruff check ."\n'


@pytest.fixture(scope="module")
def home(new_home: Callable[[], Path]) -> Path:
    """A state folder shared by this file's commands."""
    return new_home()


@pytest.fixture(scope="module")
def ran(home: Path) -> str:
    """A run of the reference and of doing nothing, by rules."""
    return str(run_json(TASK, "-a", "oracle", "-a", "nop", "--rules", written(home, RULES), home=home)["run"])


def written(folder: Path, text: str) -> Path:
    file = folder / "rules.toml"
    file.write_text(text)
    return file


def results(home: Path, run: str) -> dict[str, Any]:
    with opened(home) as place:
        return {row["agent"]: row for row in report.attempts(place, place.store.run(run))}


def regraded(home: Path, run: str, text: str) -> dict[str, Any]:
    """What the command does and prints, without a process of its own."""
    with opened(home) as place:
        made = regrading.regrade(place, place.store.run(run), rulesets.load(written(home, text)))
        return regrading.told(place, made)


def recorded(home: Path, run: str) -> list[str]:
    with opened(home) as place:
        return [row["regrade"] for row in regrading.listing(place, place.store.run(run))]


def test_a_run_by_rules_has_their_components_and_total(home: Path, ran: str) -> None:
    """Each rule is a named reward; the total is theirs; whether it passed is the tests' word alone."""
    rows = results(home, ran)
    assert rows["oracle"]["rewards"] == {
        "reward": 1.0, "tests": 1.0, "patch_size": 1.0, "compiles": 1.0, "verified_before_finish": 0.0,
        "claim_matches": 0.5, "unsafe_actions": 1.0, "no_regression": 1.0}
    assert (rows["oracle"]["total"], rows["oracle"]["passed"]) == (1.0, True)
    assert rows["nop"]["rewards"]["patch_size"] == 0.1
    assert 0 < rows["nop"]["total"] < 1
    assert rows["nop"]["passed"] is False
    shown = woodshed("show", ran, home=home).stdout
    assert shown.count("total") == 2
    assert shown.count(f"{rows['nop']['total']:.3f}") == 2


def test_the_same_rules_give_the_same_and_others_something_else(home: Path, ran: str) -> None:
    """Offline, from the record; each regrade stands beside the run's verdicts, which stay as they were."""
    before, earlier = results(home, ran), recorded(home, ran)
    same = woodshed("regrade", ran, "--rules", written(home, RULES), "--json", home=home)
    assert same.returncode == 0, same.stderr
    told = json.loads(same.stdout)
    assert {row["agent"]: row["after"] for row in told["results"]} == {
        agent: row["total"] for agent, row in before.items()}
    assert [row["changed"] for row in told["agents"]] == [0, 0]
    for row in told["results"]:
        own = {part["name"]: part["value"] for part in row["components"]}
        assert own | {"reward": float(row["passed"])} == before[row["agent"]]["rewards"]
    other = regraded(home, ran, '[[rules]]\nkind = "tests"\ngate = true\n[[rules]]\nkind = "scope"\n')
    assert {row["agent"]: (row["before"], row["after"], row["unknown"]) for row in other["agents"]} == {
        "oracle": (1.0, 1.0, 0), "nop": (before["nop"]["total"], 0.0, 0)}
    assert results(home, ran) == before
    assert recorded(home, ran) == [*earlier, told["regrade"], other["regrade"]]


def test_what_cannot_be_recomputed_is_told_and_is_no_number(home: Path, ran: str) -> None:
    """A check that never ran leaves no total; people see which rule, how often and why."""
    told = regraded(home, ran, RULES + LINT)
    assert [(row["rule"], row["attempts"]) for row in told["unknown"]] == [("lint", 2)]
    assert "never ran" in told["unknown"][0]["why"]
    assert [row["after"] for row in told["results"]] == [None, None]
    shown = woodshed("regrade", ran, "--rules", written(home, RULES + LINT), home=home)
    assert shown.returncode == 0
    assert "not recomputed" in shown.stdout
    assert "lint" in shown.stdout


def test_a_run_without_rules_is_graded_later_and_needs_no_sandbox(home: Path) -> None:
    """Sizes come from events and blobs, the reference's from its own attempt, the start's tests from nop's.

    A task that changed since is not measured against: the start must be the one the run had.
    """
    task, kinds = home / "tasks" / "fix-line", ("patch_size", "scope", "no_regression")
    shutil.copytree(TASK, task)
    run = run_json(task, "-a", "oracle", "-a", "nop", home=home)["run"]
    assert {row["total"] for row in results(home, run).values()} == {0.0, 1.0}
    told = regraded(home, run, "".join(f'[[rules]]\nkind = "{kind}"\n' for kind in kinds))
    assert told["unknown"] == []
    values = {row["agent"]: {part["name"]: part["value"] for part in row["components"]} for row in told["results"]}
    assert values == {"oracle": dict.fromkeys(kinds, 1.0),
                      "nop": {"patch_size": 0.1, "scope": 0.0, "no_regression": 1.0}}
    (task / "environment" / "workspace" / "later.txt").write_text("new\n")
    told = regraded(home, run, '[[rules]]\nkind = "patch_size"\nlines = 3\n[[rules]]\nkind = "tests"\n')
    assert [row["rule"] for row in told["unknown"]] == ["patch_size"]
    assert "changed since the run" in told["unknown"][0]["why"]


def test_a_regrade_can_only_be_added(home: Path, ran: str) -> None:
    """The database itself refuses to change or drop one."""
    regraded(home, ran, RULES)
    database = sqlite3.connect(home / "woodshed.db")
    for statement in ("UPDATE regraded SET verdict = '{}'", "DELETE FROM regrades", "DELETE FROM regraded"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            database.execute(statement)
    database.close()


def test_a_bad_rule_is_named_with_file_field_and_remedy(home: Path, ran: str) -> None:
    """Exit code 2 from run and regrade alike, and nothing is recorded."""
    before = recorded(home, ran)
    done = woodshed("run", TASK, "-a", "nop", "--rules", written(home, '[[rules]]\nkind = "patch-size"'), home=home)
    assert done.returncode == 2
    assert "rules.toml: rules.0.kind: unknown kind 'patch-size'. Did you mean 'patch_size'?" in done.stderr
    bad = written(home, '[[rules]]\nkind = "tests"\nweight = nan')
    done = woodshed("regrade", ran, "--rules", bad, "--json", home=home)
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (2, 2)
    assert f"{bad}: rules.0.weight: input should be a finite number" in done.stderr
    assert recorded(home, ran) == before
