"""Nothing of a task but its start is reachable from an attempt's sandbox: no tests, no reference, no git history."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import pytest

from kit import EXAMPLES
from woodshed import plugins
from woodshed.interfaces import Sandbox
from woodshed.model import SandboxPolicy, Task, Upload
from woodshed.tasks.load import load_task

SEARCH = "grep -rlaF --devices=skip {marker} / --exclude-dir=proc --exclude-dir=usr 2>/dev/null; true"
REPOSITORIES = "find / -path /proc -prune -o -path /usr -prune -o -name .git -print 2>/dev/null; true"
MARKERS = ("solution", "tests")


@pytest.fixture
def marked(tmp_path: Path) -> tuple[Task, dict[str, str]]:
    """A task with a secret word in its reference and one in its tests."""
    folder = tmp_path / "marked"
    shutil.copytree(EXAMPLES / "first-steps" / "write-file", folder)
    words = {name: f"MARK{secrets.token_hex(12)}" for name in MARKERS}
    (folder / "solution" / "note.txt").write_text(words["solution"])
    (folder / "tests" / "note.txt").write_text(words["tests"])
    return load_task(folder), words


async def found(sandbox: Sandbox, word: str) -> list[str]:
    """Paths inside whose content has the word; the process table's command lines count too."""
    files = await sandbox.exec(SEARCH.format(marker=word))
    shown = await sandbox.exec("cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ /proc/[0-9]*/mountinfo 2>/dev/null; true")
    return files.stdout.decode().split() + (["/proc"] if word.encode() in shown.stdout else [])


@pytest.mark.parametrize("part", MARKERS)
async def test_an_attempt_finds_neither_reference_nor_tests(
    part: str, marked: tuple[Task, dict[str, str]], shed_home: Path
) -> None:
    """A search of the whole sandbox finds the word only when the folder is handed in, which is the control."""
    task, words = marked
    engine = plugins.engine("native", shed_home)
    try:
        sandbox = await engine.create(task.environment, SandboxPolicy())
        assert await found(sandbox, words[part]) == []
        folder = task.folder / part
        told = await sandbox.exec(f"ls -la {folder} {shed_home} 2>&1; true")
        assert b"note.txt" not in told.stdout
        await sandbox.close()
        handed = task.environment.model_copy(
            update={"uploads": (*task.environment.uploads, Upload(source=folder, target=f"/{part}"))}
        )
        control = await engine.create(handed, SandboxPolicy())
        assert f"/{part}/note.txt" in await found(control, words[part])
        await control.close()
    finally:
        await engine.close()


async def test_a_sandbox_has_no_git_history_of_the_task(marked: tuple[Task, dict[str, str]], shed_home: Path) -> None:
    """There is no .git anywhere outside the read-only system."""
    task, _ = marked
    engine = plugins.engine("native", shed_home)
    try:
        sandbox = await engine.create(task.environment, SandboxPolicy())
        assert (await sandbox.exec(REPOSITORIES)).stdout == b""
        await sandbox.exec("mkdir -p /workspace/.git")
        assert (await sandbox.exec(REPOSITORIES)).stdout == b"/workspace/.git\n"
    finally:
        await engine.close()
