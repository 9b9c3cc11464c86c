"""Which image a task has: what it names, Harbor's keys, its Dockerfile; and the working folder that goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from woodshed.errors import UsageError
from woodshed.tasks.load import load_task


def make(folder: Path, toml: str = "", **files: str) -> Path:
    every = {"task.toml": toml, "instruction.md": "Do it.\n", "tests/test.sh": "exit 0\n",
             "environment/workspace/start.txt": "hello\n",
             **{name.replace("__", "/"): text for name, text in files.items()}}
    for name, text in every.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_dockerfile_is_the_world(tmp_path: Path) -> None:
    """Its WORKDIR is the working folder, what is judged lies there, and it brings the files itself."""
    folder = make(tmp_path / "t", environment__Dockerfile="FROM x\nWORKDIR /app\nCOPY workspace .\n")
    task = load_task(folder)
    assert task.environment.image == f"dockerfile:{folder / 'environment/Dockerfile'}"
    assert task.environment.workdir == "/app"
    assert task.verifier.capture == ("/app",)
    assert task.environment.uploads == ()


def test_a_named_image_has_the_workdir_of_its_dockerfile(tmp_path: Path) -> None:
    """Harbor names the image that was built of the Dockerfile beside; what task.toml says goes before."""
    toml = '[environment]\ndocker_image = "x:1"\n'
    task = load_task(make(tmp_path / "a", toml, environment__Dockerfile="FROM x\nWORKDIR /app\n"))
    assert (task.environment.image, task.environment.workdir) == ("docker://x:1", "/app")
    named = load_task(make(tmp_path / "b", toml + 'workdir = "/w"\n', environment__Dockerfile="FROM x\nWORKDIR /app\n"))
    assert named.environment.workdir == "/w"
    for text in ("FROM x\n", "WHAT is this\n"):
        with pytest.raises(UsageError, match="only the image knows"):
            load_task(make(tmp_path / f"c{len(text)}", toml, environment__Dockerfile=text))


def test_who_the_agent_is(tmp_path: Path) -> None:
    """Without a user the image says who acts; root is root whatever it says."""
    assert load_task(make(tmp_path / "a")).environment.user == ""
    assert load_task(make(tmp_path / "b", '[agent]\nuser = "root"\n')).environment.user == "root"


def test_what_the_task_says_wins(tmp_path: Path) -> None:
    """An image, a working folder and a workspace that task.toml names go before those of the Dockerfile."""
    dockerfile = "FROM x\nWORKDIR /app\n"
    named = load_task(make(tmp_path / "a", '[environment]\nworkdir = "/w"\n[woodshed]\n'
                           'workspace = "environment/workspace"\n', environment__Dockerfile=dockerfile))
    assert named.environment.workdir == "/w"
    assert [str(upload.target) for upload in named.environment.uploads] == ["/w"]
    host = load_task(make(tmp_path / "b", '[woodshed]\nimage = "host"\n', environment__Dockerfile=dockerfile))
    assert (host.environment.image, host.environment.workdir) == ("host", "/workspace")
    assert len(host.environment.uploads) == 1


@pytest.mark.parametrize(("toml", "image"), [
    ('[environment]\ndocker_image = "python:3.12"\nworkdir = "/w"', "docker://python:3.12"),
    ('[woodshed]\nimage = "ghcr.io/o/n:1"', "docker://ghcr.io/o/n:1"),
    ('[woodshed]\nimage = "docker://python"', "docker://python"),
    ('[woodshed]\nimage = "oci:../layout"', "oci:{tmp}/layout"),
    ('[woodshed]\nimage = "oci:../layout:tag:1"', "oci:{tmp}/layout:tag:1"),
    ('[woodshed]\nimage = "archive:../saved.tar"', "archive:{tmp}/saved.tar"),
    ('[woodshed]\nimage = "dockerfile:../other"\n[environment]\nworkdir = "/w"', "dockerfile:{tmp}/other/Dockerfile"),
])
def test_other_images(tmp_path: Path, toml: str, image: str) -> None:
    """Names of registries, and paths relative to the task's folder."""
    (tmp_path / "layout").mkdir()
    (tmp_path / "saved.tar").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/Dockerfile").write_text("FROM x\n")
    assert load_task(make(tmp_path / "t", toml)).environment.image == image.format(tmp=tmp_path)


@pytest.mark.parametrize(("toml", "dockerfile", "why"), [
    ("", "FROM x\n", "names no WORKDIR"), ("", "FROM x\nWORKDIR /tests/a\n", "reserved"),
    ("", "FROM x\nRUNN y\n", "no instruction"), ("", "WORKDIR /a\n", "before the first FROM"),
    ('[woodshed]\nimage = "oci:gone"', None, "no such file"),
    ('[woodshed]\nimage = "dockerfile:gone"', None, "no such"),
    ('[woodshed]\nimage = "oci:"', None, "no image"), ('[woodshed]\nimage = "oci:."', None, "would see tests"),
    ('[woodshed]\nimage = "dockerfile:Dockerfile"', None, "no such Dockerfile"),
    ('[environment]\ndocker_image = "x"', None, "only the image knows"),
])
def test_images_that_cannot_be(tmp_path: Path, toml: str, dockerfile: str | None, why: str) -> None:
    """Told when the task is loaded, with the file."""
    folder = make(tmp_path / "t", toml, **({"environment__Dockerfile": dockerfile} if dockerfile else {}))
    with pytest.raises(UsageError, match=why) as caught:
        load_task(folder)
    assert caught.value.file is not None


def test_a_dockerfile_beside_the_tests_would_show_them(tmp_path: Path) -> None:
    """A context that holds the tests is refused: whatever is copied could be among it."""
    folder = make(tmp_path / "t", '[woodshed]\nimage = "dockerfile:Dockerfile"\n', Dockerfile="FROM x\nWORKDIR /a\n")
    with pytest.raises(UsageError, match="would see tests"):
        load_task(folder)


def test_a_context_holds_no_history(tmp_path: Path) -> None:
    """Version control data in the context may hold the solution."""
    folder = make(tmp_path / "t", environment__Dockerfile="FROM x\nWORKDIR /a\n", **{"environment__.git__HEAD": "x"})
    with pytest.raises(UsageError, match="version control"):
        load_task(folder)
