"""Mining through the command line: exactly the true pairs, tasks that can be trusted, and nothing done twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit import agent_row, leftovers, run_json, woodshed
from minekit import Repo, few, history
from woodshed.errors import UsageError
from woodshed.services.home import opened as opened_home
from woodshed.services.mining import Order, mine
from woodshed.tasks import load_task
from woodshed.tasks.calibrated import read_calibration
from woodshed.tasks.git import opened
from woodshed.tasks.mine import Candidate, Commit, changes, commits, fix_lines, leaks, select


@dataclass(frozen=True)
class Mined:
    """One finished mining of the repository of twenty commits."""

    home: Path
    repo: Repo
    made: dict[str, str]
    out: Path
    result: dict[str, Any]

    def row(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(row for row in self.result["rows"] if row["commit"] == self.made[name])
        return found


def mined(repo: Path, out: Path, *options: str, home: Path) -> dict[str, Any]:
    done = woodshed("tasks", "mine", repo, "--out", out, *options, "--json", home=home)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def whole(new_home: Callable[[], Path], tmp_path_factory: pytest.TempPathFactory) -> Mined:
    home, place = new_home(), tmp_path_factory.mktemp("mine")
    repo, made = history(place / "wordkit")
    return Mined(home, repo, made, place / "out", mined(repo.path, place / "out", "--no-calibrate", home=home))


@pytest.mark.slow
def test_exactly_the_true_pairs_are_found(whole: Mined) -> None:
    """Of twenty commits the six that fail before and pass after are kept, no other, and nothing else is written."""
    assert whole.result["commits"] == 20
    kept = {row["commit"] for row in whole.result["rows"] if row["kept"]}
    assert kept == {sha for name, sha in whole.made.items() if name.startswith("pair ")}
    assert len(kept) == 6
    assert sorted(path.name for path in whole.out.iterdir()) == sorted(f"wordkit-{sha[:10]}" for sha in kept)
    assert leftovers(whole.home) == []


@pytest.mark.slow
def test_every_trap_is_refused_by_its_name(whole: Mined) -> None:
    """The table says of each other commit why it was not kept."""
    said = {name: whole.row(name)["reason"] for name in whole.made if not name.startswith("pair ")}
    assert said == {
        "initial": "initial", "docs": "docs_only", "source only": "no_tests_changed", "formatting": "formatting_only",
        "tests only": "no_source_changed", "pass before": "tests_pass_before", "network": "needs_network",
        "flaky": "flaky", "tests removed": "no_source_changed", "reverted": "reverted", "revert": "revert",
        "config": "no_tests_changed", "merge": "merge", "fail after": "tests_fail_after",
    }  # fmt: skip


@pytest.mark.slow
def test_mined_tasks_are_ordinary_tasks(whole: Mined) -> None:
    """Each loads; the workspace is the state before, without history and without the fix; the tests are hidden."""
    for row in (row for row in whole.result["rows"] if row["kept"]):
        task = load_task(Path(row["task"]))
        assert len(task.verifier.expected_tests) == row["fail_to_pass"] + row["pass_to_pass"]
        assert not list(task.folder.rglob(".git"))
    task = load_task(whole.out / f"wordkit-{whole.made['pair slug'][:10]}")
    assert not (task.folder / "environment/workspace/wordkit/slug.py").exists()
    assert (task.folder / "environment/workspace/tests/test_count.py").is_file()
    assert (task.folder / "tests/tests/test_slug.py").is_file()
    assert row_of_pairs(whole, "pair slug") == (2, 6)


def row_of_pairs(whole: Mined, name: str) -> tuple[int, int]:
    row = whole.row(name)
    return row["fail_to_pass"], row["pass_to_pass"]


@pytest.mark.slow
def test_no_instruction_repeats_the_fix(whole: Mined) -> None:
    """No line that a commit adds to the source stands in its instruction, though one message had quoted it."""
    raw = 0
    with opened(whole.repo.path) as repository:
        for commit in commits(repository):
            if not whole.result["rows"] or not (whole.out / f"wordkit-{commit.id[:10]}").exists():
                continue

            def read(blob: str) -> bytes:
                return next(repository.blobs([blob]))[1]

            candidate = select(commit, changes(repository, commit), read)
            assert isinstance(candidate, Candidate)
            instruction = load_task(whole.out / f"wordkit-{commit.id[:10]}").instruction
            fix = fix_lines(candidate)
            assert fix
            assert leaks(instruction, fix) == []
            assert not [line for line in fix if line.replace(" ", "") in instruction.replace(" ", "")]
            raw += quoted(commit)
    assert raw == 1
    assert "text.split" not in (whole.out / f"wordkit-{whole.made['pair title'][:10]}" / "instruction.md").read_text()


def quoted(commit: Commit) -> bool:
    return "text.split()" in commit.message


@pytest.mark.slow
def test_hidden_words_of_a_message_reach_no_agent(whole: Mined) -> None:
    """What a commit message hides in an HTML comment is not in the instruction."""
    text = (whole.out / f"wordkit-{whole.made['pair wrap'][:10]}" / "instruction.md").read_text()
    assert "Lines are filled greedily." in text
    assert "evil" not in text


@pytest.mark.slow
def test_references_pass_mined_tasks_and_nothing_fails_them(whole: Mined) -> None:
    """A run over the six: the oracle passes all, nop none, every verdict valid and with its canary."""
    summary = run_json(whole.out, "--agent", "oracle", "--agent", "nop", "-c", "2", home=whole.home)
    oracle, nop = agent_row(summary, "oracle"), agent_row(summary, "nop")
    assert (oracle["attempts"], oracle["passed"], nop["passed"]) == (6, 6, 0)
    assert (oracle["valid"], nop["valid"]) == (6, 6)


@pytest.mark.slow
def test_mining_again_repeats_nothing(whole: Mined) -> None:
    """A second mining finds the same without a single sandbox, also into another folder."""
    journal = next((whole.home / "mining").glob("*/journal.jsonl"))
    before = journal.read_bytes()
    again = mined(whole.repo.path, whole.out.parent / "again", "--no-calibrate", home=whole.home)
    assert journal.read_bytes() == before
    assert [row["commit"] for row in again["rows"] if row["kept"]] == \
        [row["commit"] for row in whole.result["rows"] if row["kept"]]
    assert load_task(Path(again["tasks"][0])).digest == load_task(Path(whole.result["tasks"][0])).digest


@pytest.mark.slow
def test_a_bound_and_a_date_narrow_what_is_mined(whole: Mined) -> None:
    """--max keeps the newest pairs, --since leaves out a commit with all before it."""
    few = mined(whole.repo.path, whole.out.parent / "few", "--max", "2", "--no-calibrate", home=whole.home)
    assert [row["commit"] for row in few["rows"] if row["kept"]] == [whole.made["pair wrap"], whole.made["pair plural"]]
    assert few["unseen"] == 20 - few["commits"]
    late = mined(whole.repo.path, whole.out.parent / "late", "--since", whole.made["config"], "--no-calibrate",
                 home=whole.home)
    assert {row["commit"] for row in late["rows"]} == {
        whole.made[name] for name in ("merge", "pair plural", "fail after", "pair wrap")}


def test_a_small_history_in_one_command(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """Of five commits the one true pair becomes a task; again, into another folder, nothing of it is done twice."""
    repo, made = few(tmp_path / "wordkit")
    home = new_home()
    first = mined(repo.path, tmp_path / "out", "--no-calibrate", home=home)
    assert {row["commit"]: row["reason"] for row in first["rows"]} == {
        made["initial"]: "initial", made["pair"]: None, made["formatting"]: "formatting_only",
        made["pass before"]: "tests_pass_before", made["docs"]: "docs_only",
    }  # fmt: skip
    task = load_task(tmp_path / "out" / f"wordkit-{made['pair'][:10]}")
    assert task.verifier.expected_tests == (
        "tests.test_count::test_count", "tests.test_count::test_count_of_nothing")
    assert b"def count" in (task.folder / "environment/workspace/wordkit/count.py").read_bytes()
    assert "text.split" not in task.instruction
    journal = next((home / "mining").glob("*/journal.jsonl"))
    before = journal.read_bytes()
    order = Order(repo=repo.path, out=tmp_path / "again", calibrate=False)
    with opened_home(home) as shed:
        again = asyncio.run(mine(order, home=shed, progress=lambda done, total, what: None)).record()
    assert journal.read_bytes() == before
    assert load_task(Path(again["tasks"][0])).digest == task.digest
    assert leftovers(home) == []


@pytest.mark.slow
def test_what_is_kept_is_calibrated(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """By default each kept task is checked: its record lies beside it, with label and strength in the table."""
    repo, _ = few(tmp_path / "wordkit")
    home = new_home()
    result = mined(repo.path, tmp_path / "out", home=home)
    (row,) = (row for row in result["rows"] if row["kept"])
    record = read_calibration(Path(row["task"]))
    assert record is not None
    assert (record.label, record.strength) == (row["label"], row["strength"])
    assert (record.nop.passed, record.reference.passed, record.reference.valid) == (0, 5, 5)
    again = mined(repo.path, tmp_path / "again", home=home)
    assert [other["label"] for other in again["rows"] if other["kept"]] == [row["label"]]
    assert len(json.loads(woodshed("show", "--json", home=home).stdout)["runs"]) == 1


@pytest.mark.slow
def test_a_project_that_every_sandbox_holds_is_refused(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """Where the environment brings a release of the project itself, who solves the task could read the answer there."""
    repo, made = few(tmp_path / "wordkit", project="IniConfig")
    result = mined(repo.path, tmp_path / "out", "--no-calibrate", home=new_home())
    (row,) = (row for row in result["rows"] if row["commit"] == made["pair"])
    assert (row["kept"], row["reason"]) == (False, "unsound")


def test_what_cannot_be_mined_is_told(tmp_path: Path) -> None:
    """No repository, an empty one, a file for --out, an odd --since: usage errors with a remedy, nothing written."""
    few(tmp_path / "wordkit")
    subprocess.run(["git", "init", "-q", tmp_path / "empty"], check=True)
    (tmp_path / "file").write_text("")
    for path, out, since in (("none", "o", None), ("empty", "o", None), ("wordkit", "file", None),
                             ("wordkit", "o", "--upload-pack=x;"), ("wordkit", "o", "no such day, really;")):
        order = Order(repo=tmp_path / path, out=tmp_path / out, since=since)
        with opened_home(tmp_path / "home") as home, pytest.raises(UsageError) as caught:
            asyncio.run(mine(order, home=home, progress=lambda done, total, what: None))
        assert caught.value.remedy
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_a_killed_mining_goes_on_where_it_was(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """Killed again and again, the same command ends with the same six, and no finished run is repeated."""
    repo, made = history(tmp_path / "wordkit")
    home, out = new_home(), tmp_path / "out"
    command = [sys.executable, "-m", "woodshed", "tasks", "mine", str(repo.path), "--out", str(out), "--no-calibrate"]


    for wait in (1.5, 3, 5):
        process = subprocess.Popen(command, env={**os.environ, "WOODSHED_HOME": str(home)}, stderr=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, start_new_session=True)
        time.sleep(wait)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    result = mined(repo.path, out, "--no-calibrate", home=home)
    kept = {row["commit"] for row in result["rows"] if row["kept"]}
    assert kept == {sha for name, sha in made.items() if name.startswith("pair ")}
    lines = [json.loads(line) for line in next((home / "mining").glob("*/journal.jsonl")).read_text().splitlines()
             if line]
    runs = [(line["commit"], line["data"]["plan"]) for line in lines if line["kind"] == "ran"]
    assert max(runs.count(run) for run in runs) <= 6
