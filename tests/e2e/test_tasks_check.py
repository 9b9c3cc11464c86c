"""``woodshed tasks check``: broken tasks get their label, sound ones a record, and a run minds both."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES, leftovers, run_json, woodshed
from woodshed.model import Calibration
from woodshed.tasks import Draft, load_task, write_task
from woodshed.tasks.calibrated import read_calibration
from woodshed.tasks.runners import script_files

START = b"def grade(points):\n    if points > 50:\n        return 'pass'\n    return 'pass'\n"
RIGHT = b"def grade(points):\n    if points >= 50:\n        return 'pass'\n    return 'fail'\n"
STRONG = "from grade import grade\n\nassert [grade(n) for n in (0, 49, 50, 51, 100)] == ['fail'] * 2 + ['pass'] * 3\n"
ONE_IN_FIVE = "import random\n\nassert random.random() > 0.2\n"
CHEATLESS = ("--cheats", "none", "--variants", "5")


def task(
    folder: Path, check: str = STRONG, *, solved: bytes = RIGHT, workspace: dict[str, bytes] | None = None,
    name: str = "solution.py",
) -> Path:
    """A tiny task: grade.py is to be mended; the reference puts ``solved`` there."""
    write_task(folder, Draft(
        instruction="Mend `grade`: 50 points and more pass, fewer fail. `grade(50)` is 'pass'.\n",
        workspace={"grade.py": START, **(workspace or {})},
        tests=script_files({"check_grade.py": check.encode()}),
        solution={"solve.sh": f"#!/bin/bash\ncp /solution/{name} grade.py\n".encode(), name: solved},
        framework="script", expected_tests=("check_grade",), verifier_timeout_s=60,
    ))  # fmt: skip
    return folder


def stepwise(folder: Path) -> Path:
    """A task of two steps: the tests of the first see everything, those of the second only that a file is there."""
    judged = "#!/bin/bash\nmkdir -p /logs/verifier\n{} && echo 1 > /logs/verifier/reward.txt || " \
             "echo 0 > /logs/verifier/reward.txt\n"
    files = {
        "task.toml": 'schema_version = "1.4"\n[[steps]]\nname = "begin"\nmin_reward = 1.0\n[[steps]]\nname = "end"\n',
        "instruction.md": "Two steps.\n",
        "environment/workspace/given.txt": "given\n",
        "steps/begin/instruction.md": "Write first into one.txt.\n",
        "steps/begin/tests/test.sh": judged.format('test "$(cat one.txt)" = first'),
        "steps/begin/solution/solve.sh": "echo first > one.txt\n",
        "steps/end/instruction.md": "Write second and third into two.txt.\n",
        "steps/end/tests/test.sh": judged.format("test -e two.txt"),
        "steps/end/solution/solve.sh": "printf 'second\\nthird\\n' > two.txt\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def check(*arguments: str | Path, home: Path, **options: Any) -> dict[str, dict[str, Any]]:
    """The rows of ``tasks check --json`` by name of the folder."""
    done = woodshed("tasks", "check", *arguments, "--json", home=home, **options)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.strip().splitlines()[-1])["tasks"]
    return {Path(row["folder"]).name: row for row in rows}


@pytest.fixture(scope="module")
def home(new_home: Callable[[], Path]) -> Path:
    """A state folder shared by this file's commands."""
    return new_home()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One sound task and one of every kind that is not."""
    top = tmp_path_factory.mktemp("tasks")
    task(top / "sound")
    task(top / "passes-untouched", "import grade\n")
    task(top / "reference-fails", solved=RIGHT.replace(b"50", b"60"))
    task(top / "flaky", ONE_IN_FIVE + STRONG)
    task(top / "missing-dependency", "import no_such_module_here\n" + STRONG)
    task(top / "solution-left", workspace={"notes/grade.py.orig": RIGHT + b"\n"})
    task(top / "weak", "from grade import grade\n\nassert grade(0) == 'fail'\nassert grade(80) == 'pass'\n")
    task(top / "history-left")
    stepwise(top / "second-step-weak")
    workspace = top / "history-left" / "environment" / "workspace"
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "Start")):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=workspace, check=True)
    return top


@pytest.fixture(scope="module")
def checked(home: Path, folders: Path) -> dict[str, dict[str, Any]]:
    """All of them, checked by one command."""
    return check(folders, *CHEATLESS, "--doubtful", "40", home=home)


@pytest.mark.parametrize(("name", "label", "reason"), [
    ("sound", "sound", ""),
    ("passes-untouched", "accepts-anything", "doing nothing passes"),
    ("reference-fails", "accepts-nothing", "the reference fails"),
    ("flaky", "flaky", "the reference passes"),
    ("missing-dependency", "broken-environment", "no_such_module_here"),
    ("solution-left", "leaks-solution", "notes/grade.py.orig"),
    ("history-left", "leaks-solution", "history"),
    ("weak", "weak", "wrong end states"),
    ("second-step-weak", "weak", "wrong end states"),
])  # fmt: skip
def test_every_broken_task_gets_its_label(
    name: str, label: str, reason: str, checked: dict[str, dict[str, Any]], folders: Path
) -> None:
    """The label and its reason stand in the JSON and in the record beside the task, whose digest stays what it was."""
    row = checked[name]
    assert row["label"] == label
    assert reason in " ".join(row["reasons"])
    record = read_calibration(folders / name)
    assert record is not None
    assert record.label == label
    assert record.digest == row["digest"]
    if name != "history-left":
        assert record.digest == load_task(folders / name).digest


def test_a_sound_task_has_figures(checked: dict[str, dict[str, Any]]) -> None:
    """Strength, flake rate, repeats, time, memory and what was judged by which verifier are all on record."""
    row = checked["sound"]
    assert row["strength"] == 1.0
    assert row["killed"] == row["variants"] >= 4
    assert row["survivors"] == []
    assert (row["flake_rate"], row["flaky_tests"]) == (0.0, {})
    assert row["nop"] == {"valid": 3, "passed": 0, "invalid": 0}
    assert row["reference"] == {"valid": 5, "passed": 5, "invalid": 0}
    assert 0 < row["verify_s"]["measured"] < row["verify_s"]["declared"] == 60
    assert row["memory_mb"]["measured"] > 0
    assert row["assurance"] == "poisoned"
    assert row["image_digest"]
    assert row["run"]


def test_survivors_are_patches(checked: dict[str, dict[str, Any]]) -> None:
    """Of a weak task, what its tests miss can be read: a unified diff against the reference's end state."""
    row = checked["weak"]
    assert row["strength"] < 0.9
    assert row["variants"] - row["killed"] == len(row["survivors"]) > 0
    assert all("grade.py" in survivor["patch"] and "\n+" in survivor["patch"] for survivor in row["survivors"])


def test_every_step_has_variants(checked: dict[str, dict[str, Any]]) -> None:
    """Of a task of several steps each is tried with wrong end states, upon the right ends of those before it."""
    row = checked["second-step-weak"]
    assert row["killed"] >= 1
    assert {survivor["name"].partition(":")[0] for survivor in row["survivors"]} == {"end"}
    assert all(survivor["path"] == "two.txt" for survivor in row["survivors"])


def test_a_flaky_task_says_how_often(checked: dict[str, dict[str, Any]], folders: Path) -> None:
    """Chance in a task's files makes for more repeats; the flake rate stands by test id."""
    row = checked["flaky"]
    assert 5 < row["reference"]["passed"] < row["reference"]["valid"] == 40
    record = read_calibration(folders / "flaky")
    assert record is not None
    assert record.flake_rates["check_grade"] == row["flake_rate"] > 0


def test_all_evidence_is_a_run_in_the_store(home: Path, checked: dict[str, dict[str, Any]]) -> None:
    """Every try and every variant is an attempt with events; the end state of a variant can be looked at."""
    run = checked["sound"]["run"]
    shown = json.loads(woodshed("show", run, "--json", home=home).stdout)
    mine = [row for row in shown["results"] if row["task"] == "sound"]
    assert {row["agent"] for row in mine} == {"nop", "oracle", "variant"}
    variant = next(row for row in mine if row["agent"] == "variant")
    trace = json.loads(woodshed("trace", variant["attempt"], "--json", home=home).stdout)
    assert "grade.py" in trace["diff"]
    assert trace["verdict"]["kind"] == "valid"
    assert leftovers(home) == []


def test_the_list_shows_how_tasks_stand(home: Path, checked: dict[str, dict[str, Any]], folders: Path) -> None:
    """``tasks list`` has label and strength of a current record."""
    rows = json.loads(woodshed("tasks", "list", folders / "weak", folders / "flaky", "--json", home=home).stdout)
    found = {row["task"]: row for row in rows["tasks"]}
    assert found["weak"]["label"] == "weak"
    assert found["weak"]["quarantine"] is None
    assert found["weak"]["strength"] == checked["weak"]["strength"]
    assert "flaky" in found["flaky"]["quarantine"]


def test_a_run_minds_records(home: Path, checked: dict[str, dict[str, Any]], folders: Path, tmp_path: Path) -> None:
    """Quarantined tasks are left out unless asked for; a changed task is counted in one line, and --strict refuses."""
    for name in ("sound", "flaky", "weak"):
        shutil.copytree(folders / name, tmp_path / name)
    done = woodshed("run", tmp_path, "-a", "nop", "--json", home=home)
    assert json.loads(done.stdout)["agents"][0]["attempts"] == 2
    assert done.stderr.count("in quarantine") == 1
    assert "without a current calibration" not in done.stderr
    assert run_json(tmp_path, "-a", "nop", "--quarantined", home=home)["agents"][0]["attempts"] == 3
    instruction = tmp_path / "sound" / "instruction.md"
    instruction.write_text(instruction.read_text() + "\nPlease.\n")
    stale = woodshed("run", tmp_path / "sound", tmp_path / "weak", "-a", "nop", "--json", home=home)
    assert "1 of 2 tasks without a current calibration" in stale.stderr
    assert json.loads(stale.stdout)["agents"][0]["attempts"] == 2
    refused = woodshed("run", tmp_path / "sound", "-a", "nop", "--strict", home=home)
    assert refused.returncode == 2
    assert "changed since it was checked" in refused.stderr
    assert woodshed("run", tmp_path / "flaky", "-a", "nop", home=home).returncode == 2


def test_a_killed_check_goes_on_where_it_was(home: Path, tmp_path: Path) -> None:
    """SIGKILL at a random moment, then the same command: the result of an undisturbed one, from one run."""
    long = "from grade import grade\n\nassert sum(range(6_000_000))\nassert grade(0) == 'fail'\n"  # than it is killed
    folder = task(tmp_path / "killed", long)
    asked = ["tasks", "check", str(folder), *CHEATLESS, "--json"]
    running = subprocess.Popen([sys.executable, "-m", "woodshed", *asked], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, env={**os.environ, "WOODSHED_HOME": str(home)})
    assert running.stderr is not None
    running.stderr.readline()  # a tenth is done
    time.sleep(random.SystemRandom().uniform(0.0, 0.5))
    running.send_signal(signal.SIGKILL)
    running.communicate()
    begun = json.loads(woodshed("show", "--json", home=home).stdout)["runs"][0]["run"]
    row = check(folder, *CHEATLESS, home=home)["killed"]
    assert row["label"] == "weak", row["reasons"]
    assert row["run"] == begun
    assert (row["nop"]["valid"], row["reference"]["valid"]) == (3, 5)
    shown = json.loads(woodshed("show", begun, "--json", home=home).stdout)["results"]
    assert len({(one["agent"], one["index"]) for one in shown}) == len(shown) == 8 + row["variants"]
    assert leftovers(home) == []
    refused = woodshed("run", "--resume", begun, home=home)
    assert refused.returncode == 2
    assert "tasks check --resume" in refused.stderr


@pytest.mark.slow
def test_known_cheats_are_tried(home: Path, tmp_path: Path) -> None:
    """Each cheat that fits the task is an attempt, none earns a reward, and the record names them all."""
    task(tmp_path / "cheated")
    row = check(tmp_path / "cheated", home=home)["cheated"]
    assert row["label"] == "sound"
    assert len(row["cheats"]) >= 10
    assert not any(row["cheats"].values())


@pytest.mark.slow
def test_every_example_is_sound(home: Path, tmp_path: Path) -> None:
    """Each example is sound, its verifier fails nine of ten wrong end states at least, and no cheat earns a thing."""
    shutil.copytree(EXAMPLES, tmp_path / "tasks")
    rows = check(tmp_path / "tasks", home=home, timeout=3600)
    assert len(rows) >= 22
    assert {name: (row["label"], row["reasons"]) for name, row in rows.items() if row["label"] != "sound"} == {}
    assert all(row["strength"] >= 0.9 for row in rows.values())


def test_examples_carry_current_records() -> None:
    """Beside every example stands a record of this very content, which says that it is sound."""
    for toml in EXAMPLES.glob("*/*/task.toml"):
        record = read_calibration(toml.parent)
        assert isinstance(record, Calibration), toml.parent
        assert record.digest == load_task(toml.parent).digest, toml.parent
        assert record.label == "sound", toml.parent
        assert record.strength is None or record.strength >= 0.9
