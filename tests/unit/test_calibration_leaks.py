"""What a start gives away: files of the reference's, and what git kept beyond the one commit of a start."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from woodshed.sandbox.native.engine import NativeEngine
from woodshed.services.calibration.leaks import leaked_files, leaked_history
from woodshed.services.calibration.tree import start_tree
from woodshed.tasks import Draft, write_task
from woodshed.tasks.runners import script_files

BUGGY = b"def add(a, b):\n    return a - b\n\n\ndef mul(a, b):\n    return a * b\n"
FIXED = BUGGY.replace(b"a - b", b"a + b")
LONG = (b"def parse(text):\n    items = []\n    for line in text.splitlines():\n        items.append(line.strip())\n"
        b"    return [item for item in items if item]\n")
SOLVE = b"#!/bin/bash\nset -e\nsed -i 's/a - b/a + b/' calc.py\n"


def leaks(start: Mapping[str, bytes], solved: Mapping[str, bytes | None], **solution: bytes) -> list[str]:
    files = {name.replace("_", ".", 1): content for name, content in solution.items()}
    return leaked_files(start, solved, {"solve.sh": SOLVE, **files})


@pytest.mark.parametrize(("name", "content"), [
    ("calc.py.orig", FIXED), ("docs/x.txt", FIXED.replace(b"\n", b"\r\n")), (".hidden/solve.sh", SOLVE),
    ("deep/er/er/calc", b"\n" + FIXED + b"\n\n"),
])
def test_the_references_content_elsewhere_is_a_leak(name: str, content: bytes) -> None:
    """A file that is what the reference makes, or a file of the reference's own, whatever its name and line ends."""
    found = leaks({"calc.py": BUGGY, name: content}, {"calc.py": FIXED})
    assert len(found) == 1
    assert found[0].startswith(name)


@pytest.mark.parametrize("comment", [b"", b"# ", b"// ", b"+"])
def test_added_lines_elsewhere_are_a_leak(comment: bytes) -> None:
    """Lines that the reference adds stand in the start, perhaps commented out or as a patch; in its own file, too."""
    kept = b"".join(comment + line + b"\n" for line in LONG.splitlines())
    solved = {"calc.py": BUGGY + b"\n\n" + LONG}
    assert leaks({"calc.py": BUGGY, "notes.md": b"Ideas\n\n" + kept}, solved)
    if comment not in (b"", b"+"):
        assert leaks({"calc.py": BUGGY + kept}, {"calc.py": BUGGY + LONG})


def test_a_tasks_own_material_is_no_leak() -> None:
    """What the reference copies, renames or restores by name, short lines that occur anywhere, and moved code."""
    text = b"[server]\nhost = localhost\nport = 8080\nmore = than forty characters\n"
    solve = b"#!/bin/bash\ncp config.example.ini config.ini\n"
    assert leaked_files({"config.example.ini": text}, {"config.ini": text}, {"solve.sh": solve}) == []
    assert leaks({"calc.py": BUGGY, "other.py": b"def f(a, b):\n    return a + b\n"}, {"calc.py": FIXED}) == []
    assert leaks({"calc.py": BUGGY, "empty.py": b""}, {"calc.py": FIXED, "new.py": b""}) == []
    assert leaks({"calc.py": BUGGY + LONG}, {"calc.py": LONG + BUGGY}) == []
    assert leaks({"calc.py": BUGGY}, {"calc.py": FIXED, "gone.py": None}) == []


def git(folder: Path, *words: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c", "GIT_COMMITTER_NAME": "a",
           "GIT_COMMITTER_EMAIL": "a@b.c", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *words], cwd=folder, env=clean | who, check=True, capture_output=True)


def repository(folder: Path) -> Path:
    """A start as it should be: one commit, and nothing else."""
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "calc.py").write_bytes(BUGGY)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "Start")
    return folder


def further_commit(folder: Path) -> None:
    (folder / "sub" / "calc.py").write_bytes(FIXED)
    git(folder, "commit", "-q", "-a", "-m", "Fix")


def reset(folder: Path) -> None:
    further_commit(folder)
    git(folder, "reset", "-q", "--hard", "HEAD~1")


def only_object(folder: Path) -> None:
    reset(folder)
    shutil.rmtree(folder / ".git" / "logs")
    (folder / ".git" / "ORIG_HEAD").unlink(missing_ok=True)


def tagged(folder: Path) -> None:
    further_commit(folder)
    git(folder, "tag", "v2")
    git(folder, "reset", "-q", "--hard", "HEAD~1")


def packed(folder: Path) -> None:
    only_object(folder)
    git(folder, "fsck", "--lost-found")
    git(folder, "repack", "-a", "-d", "-k")


def unreadable(folder: Path) -> None:
    (folder / ".git" / "objects" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "objects" / "info" / "alternates").write_text("/somewhere/else\n")


@pytest.mark.parametrize(("spoil", "told"), [
    (further_commit, "2 commits"), (reset, "reflog"), (only_object, "objects that the start does not need"),
    (tagged, "refs/tags/v2"), (packed, "objects that the start does not need"), (unreadable, "cannot be read"),
])  # fmt: skip
def test_history_beyond_the_start_is_a_leak(spoil: Callable[[Path], None], told: str, tmp_path: Path) -> None:
    """Further commits, logs of earlier states, tags, and objects that no ref reaches are found, loose or packed."""
    if shutil.which("git") is None:
        pytest.skip("needs git: apt-get install git")
    folder = repository(tmp_path / "start")
    assert leaked_history([folder]) == []
    spoil(folder)
    assert told in "; ".join(leaked_history([folder]))


async def test_history_that_an_image_brings_is_found(tmp_path: Path, shed_home: Path) -> None:
    """The start of a task whose Dockerfile brings it is fetched from a sandbox, and looked into like any other."""
    if shutil.which("git") is None:
        pytest.skip("needs git: apt-get install git")
    folder = repository(tmp_path / "start")
    further_commit(folder)
    task = write_task(tmp_path / "task", Draft(
        instruction="Mend it.\n", tests=script_files({"check_a.py": b""}), framework="script",
        expected_tests=("check_a",)))  # fmt: skip
    environment = task.folder / "environment"
    with tarfile.open(environment / "start.tar", "w") as archive:
        archive.add(folder, ".")
    (environment / "Dockerfile").write_text("FROM scratch\nADD start.tar /workspace/\nWORKDIR /workspace\n")
    image = f"dockerfile:{environment / 'Dockerfile'}"
    spec = task.environment.model_copy(update={"image": image, "uploads": ()})
    engine = NativeEngine(shed_home)
    try:
        async with start_tree(task.model_copy(update={"environment": spec}), engine) as tree:
            assert tree.files == {"sub/calc.py": FIXED}
            assert any("2 commits" in told for told in leaked_history(tree.folders))
    finally:
        await engine.close()


def test_a_bare_repository_deeper_down_is_looked_into(tmp_path: Path) -> None:
    """Not only .git at the top: any git directory below the start."""
    if shutil.which("git") is None:
        pytest.skip("needs git: apt-get install git")
    folder = repository(tmp_path / "origin")
    further_commit(folder)
    (tmp_path / "start" / "vendor").mkdir(parents=True)
    git(tmp_path, "clone", "-q", "--bare", "origin", "start/vendor/cache.git")
    assert any("vendor/cache.git" in told for told in leaked_history([tmp_path / "start"]))
    assert leaked_history([tmp_path / "start" / "none"]) == []
