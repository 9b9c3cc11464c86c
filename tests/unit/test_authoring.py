"""Tasks by hand: scaffolds are green as they are; an approved end state becomes a draft whose verifier holds."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES, run_json, woodshed
from woodshed.errors import UsageError
from woodshed.model import Framework
from woodshed.services import authoring
from woodshed.services.confirming import confirmed
from woodshed.services.home import opened
from woodshed.tasks import load_task

SOLVE = """\
cp /solution/greet.py .
mkdir -p notes && echo done > notes/log.txt && ln -s notes/log.txt last
rm old.txt && rm -r data && mkdir data && echo 3 > data/three.txt
printf '#!/bin/sh\\necho hi\\n' > run && chmod +x run
mkdir -p tests && echo 'assert True' > tests/test_easy.py
mkfifo pipe
"""


@pytest.mark.parametrize("framework", list(Framework))
async def test_a_scaffold_is_green_as_it_is(framework: Framework, shed_home: Path, tmp_path: Path) -> None:
    """A new task loads, its reference passes and doing nothing fails, for every framework."""
    if framework is Framework.NODE and shutil.which("node") is None:
        pytest.skip("no node: install Node.js 20 or newer")
    task = authoring.new(tmp_path / "first", framework)
    assert task.verifier.framework is framework
    assert "tasks check first" in (task.folder / "task.toml").read_text()
    with opened(shed_home) as home:
        assert await confirmed(task, home, "native") is None


async def test_the_proof_itself_tells_what_is_wrong(shed_home: Path, tmp_path: Path) -> None:
    """The positive control: a scaffold without its solution's work, or solved at the start, is told."""
    task = authoring.new(tmp_path / "first", Framework.SCRIPT)
    solved = (task.folder / "solution" / "durations.py").read_bytes()
    (task.folder / "solution" / "solve.sh").write_text("#!/bin/bash\ntrue\n")
    with opened(shed_home) as home:
        assert "reference fails" in str(await confirmed(load_task(task.folder), home, "native"))
        (task.folder / "environment" / "workspace" / "durations.py").write_bytes(solved)
        assert "doing nothing passes" in str(await confirmed(load_task(task.folder), home, "native"))


def test_a_scaffold_overwrites_nothing(tmp_path: Path) -> None:
    """A folder that is there stays as it is."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "mine").write_text("x")
    with pytest.raises(UsageError):
        authoring.new(tmp_path / "first", Framework.PYTEST)
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


@pytest.fixture(scope="module")
def attempted(tmp_path_factory: pytest.TempPathFactory, shed_home: Path) -> tuple[Path, str]:
    """A task folder, and an attempt at it that changed, made, linked, replaced and removed files."""
    place = tmp_path_factory.mktemp("attempted") / "greeting"
    shutil.copytree(EXAMPLES / "first-steps" / "fix-line", place)
    workspace = place / "environment" / "workspace"
    (workspace / "greet.py").write_text("print('hallo')\n")
    (workspace / "old.txt").write_text("old\n")
    (workspace / "data").mkdir()
    (workspace / "data" / "one.txt").write_text("1\n")
    (place / "solution" / "greet.py").write_text("print('hello')\n")
    (place / "solution" / "solve.sh").write_text(SOLVE)
    summary = run_json(place, "--agent", "oracle", home=shed_home)
    return place, f"{summary['run']}.1"


async def drafted(attempt: str, home: Path, out: Path, **options: Any) -> tuple[authoring.Drafted, str | None]:
    with opened(home) as shed:
        made = authoring.from_attempt(shed, attempt, out, **options)
        return made, await confirmed(made.task, shed, "native")


async def test_an_approved_end_state_becomes_a_task(
    attempted: tuple[Path, str], shed_home: Path, tmp_path: Path
) -> None:
    """The draft has instruction and start of the attempt; its reference passes, nop fails; what is lost is said."""
    place, attempt = attempted
    made, wrong = await drafted(attempt, shed_home, tmp_path, approve=True, commands=["python3 greet.py | grep hello"])
    assert wrong is None
    assert made.task.instruction == load_task(place).instruction
    assert (made.task.folder / "environment/workspace/old.txt").read_text() == "old\n"
    listed = [line for line in (made.task.folder / "tests/files.txt").read_text().splitlines() if line[0] != "#"]
    assert listed == ["data/three.txt", "greet.py", "notes/log.txt", "run", "last -> notes/log.txt", "!data/one.txt",
                      "!old.txt"]
    assert made.task.verifier.expected_tests == ("check_files", "check_commands")
    told = "\n".join(made.missing)
    assert "tests/test_easy.py" in told
    assert "pipe" in told
    assert "hidden tests" in told


async def test_a_mended_tree_is_what_counts(attempted: tuple[Path, str], shed_home: Path, tmp_path: Path) -> None:
    """The end state can be laid down, mended by a person, and approved as a folder."""
    _, attempt = attempted
    with opened(shed_home) as home:
        tree = authoring.export_end(home, attempt, tmp_path / "end")
    assert (tree / "last").readlink() == Path("notes/log.txt")
    assert os.access(tree / "run", os.X_OK)
    assert sorted(path.name for path in (tree / "data").iterdir()) == ["three.txt"]
    (tree / "greet.py").write_text("print('hello, you')\n")
    shutil.rmtree(tree / "notes")
    (tree / "last").unlink()
    made, wrong = await drafted(attempt, shed_home, tmp_path, tree=tree, name="mended")
    assert wrong is None
    assert (made.task.folder / "tests/expected/greet.py").read_text() == "print('hello, you')\n"
    assert "notes" not in (made.task.folder / "tests/files.txt").read_text()


async def test_a_command_that_fails_is_told(attempted: tuple[Path, str], shed_home: Path, tmp_path: Path) -> None:
    """A verifier that its own reference does not pass is written for the author to mend, and said to be so."""
    made, wrong = await drafted(attempted[1], shed_home, tmp_path, approve=True, commands=["false"])
    assert made.task.folder.is_dir()
    assert "reference fails" in str(wrong)


def test_nothing_is_approved_by_silence(attempted: tuple[Path, str], shed_home: Path, tmp_path: Path) -> None:
    """Without a person's word, or with two of them, no task is written."""
    for options in ({}, {"approve": True, "tree": tmp_path}):
        with opened(shed_home) as home, pytest.raises(UsageError, match="approve"):
            authoring.from_attempt(home, attempted[1], tmp_path / "out", **options)  # type: ignore[arg-type] # both kinds
    assert not (tmp_path / "out").exists()


def test_a_start_that_changed_is_no_start(attempted: tuple[Path, str], shed_home: Path, tmp_path: Path) -> None:
    """Where the task's folder is not as the attempt saw it, the start cannot be recovered, and nothing is made up."""
    place, attempt = attempted
    kept = (place / "instruction.md").read_text()
    try:
        (place / "instruction.md").write_text("Other\n")
        with opened(shed_home) as home, pytest.raises(UsageError, match="changed since"):
            authoring.from_attempt(home, attempt, tmp_path, approve=True)
    finally:
        (place / "instruction.md").write_text(kept)
    place.rename(place.with_name("away"))
    try:
        with opened(shed_home) as home, pytest.raises(UsageError, match="gone"):
            authoring.from_attempt(home, attempt, tmp_path, approve=True)
    finally:
        place.with_name("away").rename(place)


def test_the_commands_speak_json(shed_home: Path, tmp_path: Path) -> None:
    """new prints its folder, for programs, and an attempt that no one knows is a usage error."""
    done = woodshed("tasks", "new", tmp_path / "first", "--framework", "script", "--json", home=shed_home)
    assert '"framework": "script"' in done.stdout
    with opened(shed_home) as home, pytest.raises(UsageError, match="r-none"):
        authoring.from_attempt(home, "r-none.1", tmp_path, approve=True)


@pytest.mark.slow
@pytest.mark.parametrize("framework", list(Framework))
def test_a_scaffold_is_sound(framework: Framework, shed_home: Path, tmp_path: Path) -> None:
    """``tasks check`` calls every scaffold sound, with a strength of at least 0.9."""
    if framework is Framework.NODE and shutil.which("node") is None:
        pytest.skip("no node: install Node.js 20 or newer")
    authoring.new(tmp_path / "first", framework)
    done = woodshed("tasks", "check", tmp_path / "first", "--json", home=shed_home, timeout=1800)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["tasks"]
    assert row["label"] == "sound", row["reasons"]
    assert row["strength"] >= 0.9, row["survivors"]
