"""patch:FILE: what is applied, what is refused, and that it is all or nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from localbox import LocalBox
from scripted import Attempt, act
from woodshed import plugins
from woodshed.errors import UsageError
from woodshed.harness.patch import Patch
from woodshed.harness.patchfile import read_changes, recorded
from woodshed.model import EventKind, StopReason

START: dict[str, str | bytes] = {
    "calc.py": "def total(a, b):\n    return a - b\n",
    "old name.txt": "kept\nlines\nof text\n",
    "gone.txt": "x\n",
    "latin.txt": b"caf\xe9\r\nend",
    "data.bin": b"\0\1\2",
}


async def patched(folder: Path, content: str | bytes, start: dict[str, str | bytes] = START) -> tuple[Attempt, Path]:
    file = folder / "fix.diff"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    box = LocalBox(folder / "box")
    box.begin(start)
    return await act(Patch(file), folder, box=box), folder / "box" / "workspace"


def git_diff(folder: Path, end: dict[str, str | bytes | None], *options: str) -> bytes:
    """What git itself writes between START and START with ``end``."""
    repository = folder / "repository"
    repository.mkdir()

    def git(*words: str) -> bytes:
        return subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words], cwd=repository,
                              check=True, capture_output=True).stdout

    def lay(files: dict[str, str | bytes | None]) -> None:
        for name, content in files.items():
            path = repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content if isinstance(content, bytes) else content.encode())

    git("init", "-q", ".")
    lay(dict(START))
    git("add", "-A")
    git("commit", "-qm", "start")
    lay(end)
    git("add", "-A")
    return git("diff", "--cached", *options)


async def test_a_diff_of_git_is_applied_whole(tmp_path: Path) -> None:
    """Edits, renames, new and deleted files, names that git quotes, and bytes of any encoding."""
    diff = git_diff(tmp_path, {
        "calc.py": "def total(a, b):\n    return a + b\n", "old name.txt": None,
        "neue/Grüße.txt": "kept\nlines\nof words\n", "gone.txt": None, "latin.txt": b"th\xe9\r\nend\r\n", "empty": "",
    }, "-M", "--text")
    done, workspace = await patched(tmp_path, diff)
    assert done.stop is StopReason.FINISHED, done.results
    assert (workspace / "calc.py").read_text() == "def total(a, b):\n    return a + b\n"
    assert (workspace / "neue/Grüße.txt").read_text() == "kept\nlines\nof words\n"
    assert (workspace / "latin.txt").read_bytes() == b"th\xe9\r\nend\r\n"
    assert (workspace / "empty").read_bytes() == b""
    assert not (workspace / "gone.txt").exists()
    assert not (workspace / "old name.txt").exists()
    assert done.of(EventKind.TOOL_CALL)[0]["name"] == "patch"


async def test_a_pure_rename_and_a_mode_are_applied(tmp_path: Path) -> None:
    """A diff without a hunk moves a file; a file made executable is so."""
    diff = ("diff --git a/gone.txt b/kept.txt\nsimilarity index 100%\nrename from gone.txt\nrename to kept.txt\n"
            "diff --git a/calc.py b/calc.py\nold mode 100644\nnew mode 100755\n")
    done, workspace = await patched(tmp_path, diff)
    assert done.stop is StopReason.FINISHED, done.results
    assert (workspace / "kept.txt").read_text() == "x\n"
    assert not (workspace / "gone.txt").exists()
    assert (workspace / "calc.py").stat().st_mode & 0o777 == 0o755


async def test_a_plain_diff_is_applied_where_its_lines_stand(tmp_path: Path) -> None:
    """Without prefixes, with dates, and though lines were put in before it."""
    diff = ("--- calc.py.orig\t2026-01-01 10:00:00\n+++ calc.py\t2026-01-01 10:00:01\n"
            "@@ -1,2 +1,2 @@\n def total(a, b):\n-    return a - b\n+    return a + b\n")
    done, workspace = await patched(tmp_path, diff, {"calc.py": "# new\n# lines\ndef total(a, b):\n    return a - b\n"})
    assert done.stop is StopReason.FINISHED, done.results
    assert (workspace / "calc.py").read_text() == "# new\n# lines\ndef total(a, b):\n    return a + b\n"


async def test_a_set_of_files_is_applied(tmp_path: Path) -> None:
    """What ``recorded`` writes becomes the same files again: text, bytes, deletions; modes of what stood are kept."""
    done, workspace = await patched(tmp_path, recorded({"a/b.txt": b"text\n", "data.bin": b"\xff\0", "gone.txt": None}))
    assert done.stop is StopReason.FINISHED, done.results
    assert (workspace / "a/b.txt").read_bytes() == b"text\n"
    assert (workspace / "data.bin").read_bytes() == b"\xff\0"
    assert not (workspace / "gone.txt").exists()


@pytest.mark.parametrize(("diff", "needle"), [
    ("--- a/calc.py\n+++ b/calc.py\n@@ -1,1 +1,1 @@\n-other\n+words\n", "calc.py is not as the diff has it"),
    ("--- a/none.py\n+++ b/none.py\n@@ -1,1 +1,1 @@\n-other\n+words\n", "none.py is not there"),
    ("--- /dev/null\n+++ b/calc.py\n@@ -0,0 +1,1 @@\n+words\n", "calc.py is there already"),
    ("--- a/link/x\n+++ b/link/x\n@@ -1,1 +1,1 @@\n-a\n+b\n", "link is a symlink"),
    (recorded({"ok.txt": b"", "link/x": b"b"}), "link is a symlink"),
    (recorded({"ok.txt": b"", "way": b"b"}), "way is a symlink"),
    (recorded({"ok.txt": b"", "calc.py/x": b"b"}), "calc.py is a file"),
])
async def test_what_does_not_fit_changes_nothing(tmp_path: Path, diff: str, needle: str) -> None:
    """A hunk that does not fit, or a way through a link, fails as a bad reference does, and writes nothing."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("a\n")
    workspace = tmp_path / "box" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "link").symlink_to(outside)
    (workspace / "way").symlink_to(outside / "x")
    first = "--- a/gone.txt\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n" if diff.startswith("---") else ""
    done, _ = await patched(tmp_path, first + diff)
    assert done.stop is StopReason.SOLUTION_FAILED
    assert needle in done.results[0]
    assert (workspace / "gone.txt").exists()
    assert not (workspace / "ok.txt").exists()
    assert (outside / "x").read_text() == "a\n"


async def test_a_patch_is_bound_by_the_wall(tmp_path: Path) -> None:
    """At the wall limit it stops."""
    file = tmp_path / "set.json"
    file.write_text(recorded({"a": b"a"}))

    class Slow(LocalBox):
        async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
            import asyncio

            await asyncio.sleep(60)

    done = await act(Patch(file), tmp_path, box=Slow(tmp_path / "box"), deadline_s=0.05)
    assert done.stop is StopReason.WALL


def hunk(path: str) -> str:
    return f"--- {path}\n+++ {path}\n@@ -1,1 +1,1 @@\n-a\n+b\n"


@pytest.mark.parametrize(("content", "needle"), [
    (hunk("/etc/passwd"), "is no path below the workdir"),
    (hunk("a/../../etc/passwd"), "is no path below the workdir"),
    (hunk("x/../y"), "is no path below the workdir"),
    ("--- a/a\n+++ b/../b\n@@ -1,1 +1,1 @@\n-a\n+b\n", "is no path below the workdir"),
    ("diff --git a/x b/x\nrename from x\nrename to ../y\n--- a/x\n+++ b/../y\n", "no unified diff|is no path"),
    (recorded({"/abs": b""}), "is no path below the workdir"),
    (recorded({"a/../b": None}), "is no path below the workdir"),
    (json.dumps({"version": 1, "files": {"a\0b": ""}}), "is no path below the workdir"),
    (json.dumps({"version": 1, "files": {"\ud800": ""}}), "is no path below the workdir"),
    (json.dumps({"version": 1, "files": {"a": "\ud800"}}), "neither text, null nor base64"),
    (json.dumps({"version": 1, "files": {"a": {"base64": "!"}}}), "neither text, null nor base64"),
    (json.dumps({"version": 1, "files": {"a": 3}}), "neither text, null nor base64"),
    (json.dumps({"version": 2, "files": {}}), "is no set of files"),
    (json.dumps({"files": {}}), "is no set of files"),
    ("{oops", "is not JSON"),
    ("", "holds no change"),
    ("nothing of the kind\n", "holds no change"),
    ("@@ -1,1 +1,1 @@\n-a\n+b\n", "is no unified diff"),
    ("--- a/a\n+++ b/a\n@@ -1,9 +1,1 @@\n-a\n+b\n", "is no unified diff"),
    ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n", "a link or a"),
    ("diff --git a/d b/d\nindex 1..2 100644\nBinary files a/d and b/d differ\n", "a binary change"),
    ("diff --git a/d b/d\nindex 1..2 100644\nGIT binary patch\nliteral 3\n", "a binary change"),
])
def test_a_file_that_is_no_patch_is_refused(tmp_path: Path, content: str, needle: str) -> None:
    """Hostile paths and what is no patch are told before anything runs, with the file's name."""
    path = tmp_path / "bad.diff"
    path.write_text(content, newline="")
    with pytest.raises(UsageError, match=needle) as caught:
        Patch(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("path", "needle"), [(None, "patch:FILE"), ("", "patch:FILE"), ("/no/such", "No such file")])
def test_patch_names_a_missing_file(path: str | None, needle: str) -> None:
    """No file, or one that is not there, is told as such."""
    with pytest.raises(UsageError, match=needle):
        Patch(path)


def test_patch_is_an_agent_by_name(tmp_path: Path) -> None:
    """``patch:FILE`` is found as any harness is."""
    file = tmp_path / "set.json"
    file.write_text(recorded({"a": b"a"}))
    made = plugins.harness(f"patch:{file}")
    assert isinstance(made, Patch)
    assert not made.needs_model
    assert read_changes(file) == made.changes
