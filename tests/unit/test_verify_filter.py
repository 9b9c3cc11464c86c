"""From captured changes to what may be restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from woodshed.model import Change, ChangeKind, ChangeSet, EnvironmentSpec, Task, Upload, VerifierSpec
from woodshed.sandbox.conformance import MemoryBlobs
from woodshed.verify.filter import Filtered, filtered
from woodshed.verify.protect import Rules, Touch
from woodshed.verify.start import Start


class World:
    """A task whose start is a folder of the host."""

    def __init__(self, root: Path, *protected: str) -> None:
        files = {"app.py": "x = 1\n", "tests/test_a.py": "def test_a(): pass\n", "tests/helper.py": "",
                 "pkg/mod.py": "", "pkg/conftest.py": "", "pkg/sub/deep.py": "", "old/a.py": "", "old/b/c.py": "",
                 "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-q"\n'}
        for name, text in files.items():
            (root / "start" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "start" / name).write_text(text)
        (root / "hidden").mkdir()
        environment = EnvironmentSpec(uploads=(Upload(source=root / "start", target="/workspace"),))
        self.task = Task(id="t", folder=root, digest="d", instruction="", environment=environment,
                         verifier=VerifierSpec(tests=root / "hidden", protected=protected, capture=("/workspace",)))
        self.blobs = MemoryBlobs()

    def file(self, path: str, text: str) -> Change:
        return Change(path=f"/workspace/{path}", kind=ChangeKind.FILE, size=len(text),
                      sha256=self.blobs.put(text.encode()))

    def filter(self, *changes: Change) -> Filtered:
        start = Start.of(self.task.environment)
        return filtered(ChangeSet(changes=changes), Rules.of(self.task, start.exists), start, self.blobs)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def at(path: str, kind: ChangeKind) -> Change:
    return Change(path=f"/workspace/{path}".rstrip("/"), kind=kind)


def shape(result: Filtered) -> list[tuple[str, str]]:
    return [(change.path.removeprefix("/workspace").lstrip("/"), change.kind.value)
            for change in result.changes.changes]


def test_work_is_kept_and_controls_are_dropped(world: World) -> None:
    """Source stays; conftest and tests go, each with its flag."""
    result = world.filter(world.file("app.py", "x = 2\n"), world.file("conftest.py", "evil"),
                          world.file("tests/test_a.py", "pass"))
    assert shape(result) == [("app.py", "file")]
    assert result.flags == ("tamper:protected_path", "weakens_tests")
    assert result.control


def test_an_unchanged_copy_is_no_touch(world: World) -> None:
    """A protected file written again with its own content (a checkout) is dropped without a word."""
    result = world.filter(world.file("tests/test_a.py", "def test_a(): pass\n"))
    assert (shape(result), result.flags) == ([], ())


def test_caches_go_silently(world: World) -> None:
    """Compiled files are dropped and nobody is blamed."""
    result = world.filter(at("__pycache__", ChangeKind.DIRECTORY), world.file("__pycache__/a.pyc", "x"))
    assert (shape(result), result.flags) == ([], ())


def test_deleting_a_folder_keeps_its_protected_files(world: World) -> None:
    """Deleting a folder that holds a conftest deletes all else below it, and is marked."""
    result = world.filter(at("pkg", ChangeKind.DELETED))
    assert shape(result) == [("pkg/mod.py", "deleted"), ("pkg/sub", "deleted")]
    assert result.touched == [("/workspace/pkg/conftest.py", Touch.CONTROL)]


def test_deleting_an_ordinary_folder_is_work(world: World) -> None:
    """A folder without protected files may go as a whole."""
    assert shape(world.filter(at("old", ChangeKind.DELETED))) == [("old", "deleted")]


def test_replacing_the_workdir_keeps_its_protected_files(world: World) -> None:
    """A workdir made anew hides nothing protected, loses what was not made again, and keeps what was."""
    result = world.filter(
        at("", ChangeKind.OPAQUE), world.file("app.py", "x = 3\n"), world.file("tests/test_a.py", "evil"),
        at("old", ChangeKind.DIRECTORY), world.file("old/new.py", ""))
    kinds = dict(shape(result))
    assert kinds[""] == "directory"
    assert kinds["app.py"] == "file"
    assert kinds["pkg/mod.py"] == "deleted"
    assert "tests/test_a.py" not in kinds
    assert "pyproject.toml" not in kinds
    # the new "old" stands in a replaced folder: what the start had in it must not shine through
    assert kinds["old"] == "opaque"
    assert set(result.flags) == {"tamper:protected_path", "weakens_tests"}


@pytest.mark.parametrize("kind", [ChangeKind.FILE, ChangeKind.SYMLINK])
def test_nothing_takes_the_place_of_a_guarded_folder(world: World, kind: ChangeKind) -> None:
    """A file or a link in the place of a folder with protected files is dropped; the folder stays."""
    result = world.filter(at("pkg", kind))
    assert (shape(result), result.control) == ([], True)


def test_tests_cannot_become_a_link(world: World) -> None:
    """A link in the place of the tests folder is dropped."""
    result = world.filter(at("tests", ChangeKind.SYMLINK))
    assert (shape(result), result.flags) == ([], ("weakens_tests",))


def test_steering_tables_are_merged(world: World) -> None:
    """pyproject.toml keeps the agent's tables and the start's test settings, as a new blob."""
    result = world.filter(world.file("pyproject.toml", '[project]\nname = "b"\n'))
    (change,) = result.changes.changes
    assert change.sha256 is not None
    content = world.blobs.content[change.sha256]
    assert b'addopts = "-q"' in content
    assert b'name = "b"' in content
    assert change.size == len(content)
    assert result.control


def test_the_outside_is_refused(world: World) -> None:
    """Changes outside the capture go with a flag; the folders above it go without."""
    result = world.filter(Change(path="/", kind=ChangeKind.DIRECTORY), Change(path="/root/x", kind=ChangeKind.FILE))
    assert (shape(result), result.flags) == ([], ("outside_capture",))


def test_lookalikes_are_flagged(world: World) -> None:
    """A file that only looks like a protected one is kept and flagged."""
    result = world.filter(world.file("Conftest.py", ""))
    assert (shape(result), result.flags) == ([("Conftest.py", "file")], ("lookalike_path",))


def test_a_task_may_hand_over_tests(tmp_path: Path) -> None:
    """With ``!tests/`` the agent's tests are its work, folders included."""
    world = World(tmp_path, "!tests/")
    result = world.filter(at("tests/new", ChangeKind.DIRECTORY), world.file("tests/new/test_b.py", "pass"))
    assert shape(result) == [("tests/new", "directory"), ("tests/new/test_b.py", "file")]
    assert result.flags == ()


def test_start_reads_uploads_without_following_links(tmp_path: Path) -> None:
    """The start knows what uploads put where; later ones win, and a host link is never followed."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    (tmp_path / "a" / "link").symlink_to("/etc")
    (tmp_path / "one").write_text("2")
    start = Start.of(EnvironmentSpec(uploads=(Upload(source=tmp_path / "a", target="/workspace"),
                                              Upload(source=tmp_path / "one", target="/workspace/x"))))
    assert start.read("/workspace/x") == b"2"
    assert start.exists("/workspace/link")
    assert not start.exists("/workspace/link/passwd")
    assert start.read("/workspace/link/passwd") is None
    assert start.read("/workspace") is None
    assert list(start.children("/workspace")) == [("/workspace/link", False), ("/workspace/x", False)]
    assert list(start.children("/")) == [("/workspace", True)]
