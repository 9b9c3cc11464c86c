"""A task goes to Harbor and comes back the same; what cannot go along is told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kit import EXAMPLES, woodshed
from woodshed.errors import UsageError
from woodshed.model import Task
from woodshed.tasks import Draft, load_task, pytest_files, write_task
from woodshed.tasks.export import export_harbor
from woodshed.tasks.load import task_folders

HARBOR, NEEDED = "harbor==0.26.0", ("pydantic", "toml", "pathspec")


def facts(task: Task) -> str:
    """Everything of a task but where it lies and which bytes its folder has."""
    told = task.model_dump(mode="json", exclude={"digest", "group", "folder"})
    return json.dumps(told, sort_keys=True).replace(str(task.folder), "TASK")


def made(folder: Path, toml: str, **files: str) -> Path:
    base = {"instruction.md": "Do it.\n", "tests/test.sh": "true\n", "environment/workspace/a": "a\n"}
    for name, content in {**base, "task.toml": toml, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


STEPS = {"steps/a/instruction.md": "A\n", "steps/a/workdir/setup.sh": "true\n", "steps/b/instruction.md": "B\n"}
CASES: dict[str, tuple[str, dict[str, str], str]] = {
    "bare": ("", {}, "made for Harbor"),
    "name without org": ('[task]\nname = "bare"\ndescription = "x"\n', {}, "description of [task] left out"),
    "name": ('[task]\nname = "org/bare"\ndescription = "x"\n', {}, "in the agent's own container"),
    "old spelling": ('version = "1.0"\n[environment]\nmemory = "1G"\nstorage = "2G"\nallow_internet = true\n', {}, ""),
    "offline": ('[environment]\nnetwork_mode = "public"\n[verifier]\nnetwork_mode = "allowlist"\nallowed_hosts = '
                '["a.example"]\n[woodshed]\nnetwork = "none"\n', {}, ""),
    "own world": ('artifacts = ["/out"]\n[verifier.environment]\nmemory_mb = 64\n', {}, ""),
    "variables": ('[environment]\nenv = {A = "${B:-c}"}\n', {}, "environment.env.A"),
    "image": ('[woodshed]\nimage = "python:3.12"\nrequirements = ["six"]\n', {}, "python:3.12"),
    "docker image": ('[environment]\ndocker_image = "python:3.12"\nworkdir = "/app"\n', {}, ""),
    "Dockerfile": ("", {"environment/Dockerfile": "FROM python:3.12\nWORKDIR /app\n"}, ""),
    "another Dockerfile": ('[woodshed]\nimage = "dockerfile:build/My"\n[environment]\nworkdir = "/app"\n',
                           {"build/My": "FROM python:3.12\nWORKDIR /app\n"}, ""),
    "root folder": ('[woodshed]\nimage = "dir:root"\n', {"root/etc/x": "x"}, "cannot use dir:"),
    "workspace elsewhere": ('[woodshed]\nworkspace = "start"\n', {"start/b": "b"}, ""),
    "expected": ('[woodshed]\nexpected_tests = ["test_a::test_b"]\nprotected = ["x"]\n[woodshed.limits]\npids = 9\n',
                 {"tests/test_a.py": "x"}, "woodshed.limits.pids"),
    "steps": ('[[steps]]\nname = "a"\nmin_reward = 0.5\n[[steps]]\nname = "b"\n[steps.verifier]\nuser = "root"\n'
              '[woodshed.steps.a]\nexpected_tests = ["test_a::test_b"]\nframework = "pytest"\n', STEPS,
              "woodshed.steps.a"),
    "checks": ('[[verifier.collect]]\ncommand = "x"\n[environment.healthcheck]\ncommand = "y"\nretries = 2\n'
               '[agent]\nuser = "nobody"\n', {}, ""),
}


def world(name: str, folder: Path) -> Path:
    """The task of a case."""
    toml, files, _ = CASES[name]
    source = made(folder / "bare", toml, **files)
    if "environment/Dockerfile" in files or "docker_image" in toml or "workspace =" in toml:
        shutil.rmtree(source / "environment/workspace")
    return source


@pytest.fixture(autouse=True)
def _lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks get the hosts they declare."""
    monkeypatch.setenv("WOODSHED_TASK_NETWORK", "declared")


@pytest.mark.parametrize("name", list(CASES))
def test_a_task_comes_back_the_same(name: str, tmp_path: Path) -> None:
    """What is loaded from the export is the task it was made of, and what Harbor lacks stands among the warnings."""
    source = world(name, tmp_path / "from")
    exported = export_harbor(source, tmp_path / "to")
    task, back = load_task(source), load_task(exported.folder)
    moved = name in ("workspace elsewhere", "another Dockerfile")
    told = facts(task).replace("TASK/start", "TASK/environment/workspace").replace("build/My", "environment/Dockerfile")
    assert facts(back) == (told if moved else facts(task))
    assert CASES[name][2] in "\n".join(exported.warnings)
    config = tomllib.loads((exported.folder / "task.toml").read_text())
    environment = config["environment"]
    assert config["schema_version"] == "1.4"
    assert environment["network_mode"] == ("public" if name == "old spelling" else "no-network")
    assert "docker_image" in environment or (exported.folder / "environment/Dockerfile").is_file()
    again = export_harbor(exported.folder, tmp_path / "again")
    assert facts(load_task(again.folder)) == facts(back)


def test_what_stands_there_is_not_overwritten(tmp_path: Path) -> None:
    """A task folder is replaced by force alone, anything else never, and no task is exported into itself."""
    source = world("bare", tmp_path / "from")
    export_harbor(source, tmp_path / "to")
    with pytest.raises(UsageError, match="exists already"):
        export_harbor(source, tmp_path / "to")
    export_harbor(source, tmp_path / "to", force=True)
    with pytest.raises(UsageError, match="own folder"):
        export_harbor(source, source.parent, force=True)
    (tmp_path / "other/bare").mkdir(parents=True)
    with pytest.raises(UsageError, match="stands in the way"):
        export_harbor(source, tmp_path / "other", force=True)
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["bare"]


def test_the_command_tells_what_was_lost(tmp_path: Path) -> None:
    """``woodshed tasks export`` writes every task of a folder and names what does not go along."""
    write_task(tmp_path / "from" / "add", Draft(
        instruction="Add.\n", tests=pytest_files({"test_a.py": b"def test_b(): pass\n"}), framework="pytest",
        expected_tests=("test_a::test_b",)))
    done = woodshed("tasks", "export", tmp_path / "from", "--to", tmp_path / "to", "--json", home=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["count"], told["tasks"][0]["task"]) == (1, "add")
    assert any("believes the reward file" in warning for warning in told["tasks"][0]["warnings"])
    again = ("tasks", "export", tmp_path / "from", "--to", tmp_path / "x", "--format", "y")
    wrong = woodshed(*again, home=tmp_path / "home")
    assert (wrong.returncode, "unknown format" in wrong.stderr) == (2, True)


_VALIDATE = """
import sys
from harbor.models.task.task import Task
for folder in sys.argv[1:]:
    assert Task.is_valid_dir(folder), folder
    task = Task(folder)
    for step in task.config.steps or []:
        assert task.step_instruction(step.name)
    print(task.name)
"""


def modern_python() -> str:
    """A Python that Harbor runs on."""
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    found = [sys.executable, *filter(None, map(shutil.which, ("python3.12", "python3.13"))),
             *(str(path) for path in sorted(root.glob("versions/3.1[23]*/bin/python")))]
    for python in found:
        asked = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 12))"]
        if not subprocess.run(asked, check=False, capture_output=True).returncode:
            return python
    pytest.skip("Harbor needs Python 3.12: put a python3.12 on PATH")


@pytest.mark.slow
def test_harbor_itself_takes_every_export(tmp_path: Path) -> None:
    """Harbor's own models validate the exports of every case here and of all examples."""
    python = modern_python()
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    harbor = tmp_path / "venv/bin/python"
    for packages in (("--no-deps", HARBOR), NEEDED):  # its models need no more of the hundred packages it asks for
        done = subprocess.run([harbor, "-m", "pip", "install", "-q", *packages], check=False, capture_output=True,
                              text=True)
        if done.returncode:
            pytest.skip(f"{' '.join(packages)} cannot be installed: {done.stderr.strip()[-300:]}")
    folders = [export_harbor(world(name, tmp_path / str(at)), tmp_path / "to" / str(at)).folder
               for at, name in enumerate(CASES)]
    folders += [export_harbor(folder, tmp_path / "examples" / folder.parent.name).folder
                for folder in task_folders(EXAMPLES)]
    told = subprocess.run([harbor, "-c", _VALIDATE, *folders], check=False, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-2000:]
    assert len(told.stdout.splitlines()) == len(folders)
