"""Bad input gets a clear error that names the file, the field and the remedy; the other attempts are unharmed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES, agent_row, run_json, woodshed
from woodshed.cli.run import run
from woodshed.errors import UsageError
from woodshed.model import Durability

START = EXAMPLES / "first-steps" / "write-file"


@pytest.fixture(scope="module")
def home(new_home: Callable[[], Path]) -> Path:
    """A state folder shared by this file's commands."""
    return new_home()


def copy_of_a_task(folder: Path, name: str = "broken") -> Path:
    """A task like the example's, under a name of its own."""
    task = folder / name
    shutil.copytree(START, task)
    edit(task / "task.toml", 'name = "woodshed/write-file"', f'name = "test/{name}"')
    return task


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_missing_folder_is_named(home: Path, tmp_path: Path) -> None:
    """A folder that is not there ends the command with exit code 2 and its path."""
    done = woodshed("run", tmp_path / "nowhere", "--agent", "nop", home=home)
    assert done.returncode == 2
    assert "nowhere" in done.stderr


def test_broken_toml_is_named_with_its_line(home: Path, tmp_path: Path) -> None:
    """A task.toml that is no TOML is named with where it breaks."""
    task = copy_of_a_task(tmp_path)
    (task / "task.toml").write_text("schema_version = \n")
    done = woodshed("run", task, "--agent", "nop", home=home)
    assert done.returncode == 2
    assert "task.toml" in done.stderr
    assert "line 1" in done.stderr


def test_an_unknown_key_is_named_with_its_nearest_known_one(home: Path, tmp_path: Path) -> None:
    """A misspelt key is refused with file, field and the key that was meant."""
    task = copy_of_a_task(tmp_path)
    with (task / "task.toml").open("a") as file:
        file.write("\n[verifier.env]\n\n[solution]\nenvv = {}\n")
    done = woodshed("run", task, "--agent", "nop", home=home)
    assert done.returncode == 2
    assert "task.toml" in done.stderr
    assert "envv" in done.stderr


def test_a_task_without_tests_is_refused(home: Path, tmp_path: Path) -> None:
    """No tests means no verdict: the loader says so."""
    task = copy_of_a_task(tmp_path)
    shutil.rmtree(task / "tests")
    done = woodshed("run", task, "--agent", "nop", home=home)
    assert done.returncode == 2
    assert "tests" in done.stderr


def test_an_unknown_agent_is_answered_with_the_nearest_name(home: Path) -> None:
    """A misspelt agent is refused with the one that was meant."""
    done = woodshed("run", START, "--agent", "oracel", home=home)
    assert done.returncode == 2
    assert "oracle" in done.stderr


def test_an_agent_that_needs_a_model_asks_for_one(home: Path) -> None:
    """The loop without a model is refused before anything runs."""
    done = woodshed("run", START, "--agent", "loop", home=home)
    assert done.returncode == 2
    assert "--model" in done.stderr


def test_an_unreachable_model_is_refused_before_anything_runs(home: Path) -> None:
    """Nothing listens at the endpoint: exit code 2, its address, and no run is left open."""
    done = woodshed("run", START, "--agent", "loop", "--model", "x@http://127.0.0.1:9/v1", home=home)
    assert done.returncode == 2
    assert "127.0.0.1:9" in done.stderr


def test_an_error_is_an_object_for_programs(home: Path, tmp_path: Path) -> None:
    """With --json the error stands on standard output as an object."""
    done = woodshed("run", tmp_path / "nowhere", "--agent", "nop", "--json", home=home)
    assert done.returncode == 2
    assert "nowhere" in json.loads(done.stdout)["error"]


def test_an_image_that_does_not_exist_is_named(home: Path, tmp_path: Path) -> None:
    """A task whose image is no folder is refused with file, field and path."""
    task = copy_of_a_task(tmp_path)
    edit(task / "task.toml", 'image = "host"', f'image = "dir:{tmp_path}/nowhere"')
    done = woodshed("run", task, "--agent", "oracle", home=home)
    assert done.returncode == 2
    assert "task.toml: woodshed.image" in done.stderr
    assert "nowhere" in done.stderr


def test_an_image_that_cannot_run_harms_no_neighbour(home: Path, tmp_path: Path) -> None:
    """An attempt whose image has no shell is invalid by environment, and the others finish."""
    task = copy_of_a_task(tmp_path / "set")
    (tmp_path / "hollow").mkdir()
    edit(task / "task.toml", 'image = "host"', f'image = "dir:{tmp_path}/hollow"')
    copy_of_a_task(tmp_path / "set", "sound")
    summary = run_json(tmp_path / "set", "--agent", "oracle", home=home)
    row = agent_row(summary, "oracle")
    assert row["invalid"] == {"environment": 1}
    assert row["passed"] == 1
    shown = json.loads(woodshed("show", summary["run"], "--json", home=home).stdout)["results"]
    assert "hollow" in next(r["detail"] for r in shown if not r["valid"])


def test_a_hanging_verifier_is_invalid_when_the_reference_hangs_too(home: Path, tmp_path: Path) -> None:
    """A verifier that hangs whatever the agent did is the task's fault: invalid, and the neighbour passes."""
    task = copy_of_a_task(tmp_path / "set")
    (task / "tests" / "test.sh").write_text("#!/bin/bash\nsleep 1000\n")
    text = (task / "task.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("timeout_sec")]
    (task / "task.toml").write_text("\n".join(lines).replace("[verifier]", "[verifier]\ntimeout_sec = 2.0"))
    copy_of_a_task(tmp_path / "set", "sound")
    summary = run_json(tmp_path / "set", "--agent", "oracle", "-c", "2", home=home)
    row = agent_row(summary, "oracle")
    assert row["invalid"] == {"verifier": 1}
    assert row["passed"] == 1


NOISE = """#!/bin/bash
head -c 100000000 /dev/zero | tr '\\0' '\\377'
echo 'hello world' > hello.txt
"""


def test_a_flood_of_bytes_that_are_no_text_is_bounded_and_marked(home: Path, tmp_path: Path) -> None:
    """100 MB of output that is not UTF-8 is cut and marked; the attempt still passes."""
    task = copy_of_a_task(tmp_path)
    (task / "solution" / "solve.sh").write_text(NOISE)
    summary = run_json(task, "--agent", "oracle", home=home)
    assert agent_row(summary, "oracle")["passed"] == 1
    told = json.loads(woodshed("trace", f"{summary['run']}.1", "--json", home=home).stdout)
    answer = told["steps"][-1]["observations"][0]
    assert answer["truncated"]
    assert len(answer["content"]) < 4_000_000


def test_what_typer_refuses_is_an_object_for_programs_too(home: Path) -> None:
    """An unknown option or command with --json ends with an object on standard output and exit code 2."""
    for arguments in (("run", "--nonsense"), ("nonsense",), ("run", "x", "-n", "0")):
        done = woodshed(*arguments, "--json", home=home)
        assert done.returncode == 2, arguments
        assert json.loads(done.stdout)["exit_code"] == 2


def test_an_unknown_verifier_is_answered_with_the_known_ones(home: Path) -> None:
    """A misspelt verifier is refused before anything runs."""
    done = woodshed("run", START, "--agent", "nop", "--verifier", "poison", home=home)
    assert done.returncode == 2
    assert "poisoned" in done.stderr


def test_a_policy_that_cannot_hold_is_refused_before_anything_runs(home: Path, tmp_path: Path) -> None:
    """A policy that hides the tasks' working directory is an error of the command, not of every attempt."""
    policy = tmp_path / "policy.toml"
    policy.write_text('[[directories]]\npath = "/workspace"\naccess = "hidden"\n')
    done = woodshed("run", START, "--agent", "oracle", "--policy", policy, home=home)
    assert done.returncode == 2
    assert "/workspace is hidden" in done.stderr


def test_a_reserve_that_is_no_number_is_named(home: Path) -> None:
    """A setting that must be a number is refused with its variable's name."""
    done = woodshed("run", START, "--agent", "nop", home=home, env={"WOODSHED_WARM_SANDBOXES": "two"})
    assert done.returncode == 2
    assert "WOODSHED_WARM_SANDBOXES" in done.stderr


@pytest.mark.parametrize(("options", "named"), [
    ({"tasks": ["t"], "agent": ["nop"]}, "tasks, --agent"), ({"durability": Durability.FINE}, "--durability"),
    ({"retry": Path("retry.toml")}, "--retry"), ({"deadline": ["act=1s"]}, "--deadline"),
    ({"seed": 7, "tool_calls": 9}, "--seed, --tool-calls"),
], ids=["tasks", "durability", "retry", "deadline", "figures"])
def test_a_resumed_run_is_what_it_was(options: dict[str, Any], named: str) -> None:
    """What would seem to change a run is refused beside --resume, instead of being passed over."""
    with pytest.raises(UsageError, match=f"takes no {named}. The run remembers them"):
        run(resume="last", **options)
