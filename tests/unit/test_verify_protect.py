"""Which captured paths steer a verification, and which are ordinary work."""

from __future__ import annotations

import pytest

from woodshed.model import Change, ChangeKind
from woodshed.verify.patterns import Patterns
from woodshed.verify.protect import Rules, Touch

START = {"/workspace/calendar.py", "/workspace/pkg/tests/test_old.py", "/workspace/test_top.py",
         "/workspace/src/app.py"}


def rules(*protected: str, capture: tuple[str, ...] = ("/workspace",), pythonpath: str | None = None) -> Rules:
    roots = ("/workspace", "/workspace/src", *((pythonpath,) if pythonpath else ()))
    return Rules("/workspace", capture, Patterns.of(protected), roots, START.__contains__)


def touch(path: str, *protected: str, kind: ChangeKind = ChangeKind.FILE, **more: tuple[str, ...]) -> Touch | None:
    return rules(*protected, **more).classify(Change(path=path, kind=kind))  # type: ignore[arg-type]  # capture only


@pytest.mark.parametrize("path", [
    "conftest.py", "a/b/conftest.py", "tests/conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml",
    "sub/pytest.ini", "setup.cfg", "tox.ini", ".coveragerc", "sitecustomize.py", "src/usercustomize.py",
    "sitecustomize.pyc", "sitecustomize/__init__.py", "x.pth", "deep/er/y.egg-link", "pytest.py", "pytest/__init__.py",
    "_pytest/__init__.py", "pluggy/__init__.py", "py.py", "json.py", "xml/__init__.py", "unittest.py", "src/json.py",
    "re.cpython-311-x86_64-linux-gnu.so", "random.pyc", ".git/hooks/pre-commit", "sub/.git/hooks/post-checkout",
    "vitest.config.ts", "jest.config.mjs", ".npmrc", "node_modules/.bin/vitest", "web/node_modules/jest-cli/bin.js",
    ".bashrc", ".profile", "pyvenv.cfg",
])
def test_control_files_steer(path: str) -> None:
    """A file that a test runner, an interpreter or a shell reads unasked is a control."""
    assert touch(f"/workspace/{path}") is Touch.CONTROL


@pytest.mark.parametrize("path", [
    "app.py", "conftest_notes.md", "pkg/json.py", "src/pkg/json.py", "jsonx.py", "json/data.txt", "code", "json",
    "my.pth.txt", "calendar.py", ".git/hooks/pre-commit.sample", ".git/HEAD", "src/testing.py", "contests/a.py",
    "latest/x", "pkg/tests/test_new.py", "test_new.py", "node_modules/left-pad/index.js",
])
def test_ordinary_work_is_kept(path: str) -> None:
    """What merely resembles a control, or is a test the agent added outside the tests folder, is ordinary work."""
    assert touch(f"/workspace/{path}") is None


@pytest.mark.parametrize("path", ["tests/test_a.py", "tests/data/x.json", "test/run.sh", "tests", "test_top.py",
                                  "pkg/tests/test_old.py"])
def test_tests_are_protected(path: str) -> None:
    """The tests folder is protected whole, tests elsewhere where the start has them."""
    assert touch(f"/workspace/{path}") is Touch.TEST


@pytest.mark.parametrize("path", [
    "/tests/test.sh", "/solution/solve.sh", "/logs/verifier/junit.xml", "/opt/venv/lib/x.py", "/usr/bin/python3",
    "/etc/passwd",
])
def test_places_of_ours_are_locked(path: str) -> None:
    """The verifier's own folders and the system are controls even where everything is captured and un-protected."""
    assert touch(path, "!tests/", "!*.py", capture=("/",)) is Touch.CONTROL


def test_a_captured_artifact_in_the_system_is_work() -> None:
    """A task that captures one file of /etc gets that file and no other."""
    assert touch("/etc/app.conf", capture=("/workspace", "/etc/app.conf")) is None
    assert touch("/etc/passwd", capture=("/workspace", "/etc/app.conf")) is Touch.OUTSIDE
    assert touch("/tests/test.sh", capture=("/tests/test.sh",)) is Touch.CONTROL


def test_caches_are_dropped_without_blame() -> None:
    """Compiled files and caches can carry code and are never needed: they go, and nobody is blamed."""
    assert touch("/workspace/pkg/__pycache__/conftest.cpython-311-pytest-9.0.0.pyc") is Touch.CACHE
    assert touch("/workspace/.pytest_cache/v/cache/lastfailed") is Touch.CACHE


def test_outside_the_capture_is_refused() -> None:
    """A change outside every capture root is not restored, whoever let it through."""
    assert touch("/root/.bashrc") is Touch.OUTSIDE
    assert touch("/workspace-evil/x") is Touch.OUTSIDE
    assert touch("/workspace/../etc/passwd") is Touch.OUTSIDE


def test_tasks_add_and_take_back() -> None:
    """A task's own patterns protect more, and ``!`` takes back; the last that holds decides."""
    assert touch("/workspace/golden/out.csv", "golden/") is Touch.TEST
    assert touch("/workspace/deep/x.golden", "*.golden") is Touch.TEST
    assert touch("/workspace/deep/x.golden", "/*.golden") is None
    assert touch("/workspace/tests/test_new.py", "!tests/test_new.py") is None
    assert touch("/workspace/tests/test_a.py", "!tests/test_new.py") is Touch.TEST
    assert touch("/workspace/tests/test_a.py", "!tests/", "tests/test_a.py") is Touch.TEST
    assert touch("/workspace/setup.cfg", "!setup.cfg") is None
    assert touch("/workspace/json.py", "!/json.py") is None


def test_import_roots_follow_pythonpath() -> None:
    """A folder on the declared PYTHONPATH is an import root, where a shadow of the standard library is a control."""
    assert touch("/workspace/lib2/json.py") is None
    assert rules(pythonpath="/workspace/lib2").classify(
        Change(path="/workspace/lib2/json.py", kind=ChangeKind.FILE)) is Touch.CONTROL


def test_the_root_may_be_the_workdir() -> None:
    """A task that works in / has the same protection, and the places of ours stay ours."""
    at_root = Rules("/", ("/",), Patterns.of(["golden/"]), ("/",), lambda path: False)
    wanted = {"/json.py": Touch.CONTROL, "/conftest.py": Touch.CONTROL, "/golden/x": Touch.TEST, "/app/x.py": None,
              "/tests/test.sh": Touch.CONTROL, "/etc/passwd": Touch.CONTROL}
    assert {path: at_root.classify(Change(path=path, kind=ChangeKind.FILE)) for path in wanted} == wanted


def test_a_link_can_shadow_too() -> None:
    """A link named like a standard package at an import root is a control: it may lead to a package."""
    assert touch("/workspace/json", kind=ChangeKind.SYMLINK) is Touch.CONTROL
    assert touch("/workspace/data", kind=ChangeKind.SYMLINK) is None


@pytest.mark.parametrize("kind", [ChangeKind.SYMLINK, ChangeKind.FILE, ChangeKind.DELETED])
def test_the_workdir_stays_a_folder(kind: ChangeKind) -> None:
    """Nothing takes the place of the workdir itself."""
    assert touch("/workspace", kind=kind) is Touch.CONTROL
    assert touch("/workspace", kind=ChangeKind.OPAQUE) is None


def test_partly_steering_files_are_merged() -> None:
    """pyproject.toml and package.json are work with a steering part; deleting the top one is a control."""
    assert touch("/workspace/pyproject.toml") is Touch.MERGED
    assert touch("/workspace/web/package.json") is Touch.MERGED
    assert touch("/workspace/evil.dist-info/entry_points.txt") is Touch.MERGED
    assert touch("/workspace/pyproject.toml", kind=ChangeKind.SYMLINK) is Touch.CONTROL
    assert touch("/workspace/pyproject.toml", kind=ChangeKind.DELETED) is Touch.CONTROL


def test_names_are_compared_in_one_form() -> None:
    """A pattern in composed letters holds for a name in decomposed ones, and case is kept apart."""
    assert touch("/workspace/prüfung/x", "prüfung/") is Touch.TEST
    assert touch("/workspace/Conftest.py") is None


@pytest.mark.parametrize("path", ["Conftest.py", "ｃonftest.py", "TESTS/test_a.py", "PyTest.ini"])
def test_lookalikes_are_noticed(path: str) -> None:
    """A name that a person or a case-blind system takes for a protected one is kept and noticed."""
    change = Change(path=f"/workspace/{path}", kind=ChangeKind.FILE)
    assert rules().classify(change) is None
    assert rules().mimics(change)


def test_plain_names_mimic_nothing() -> None:
    """Capital letters alone are no imitation."""
    for path in ("README.md", "src/App.tsx", "Makefile"):
        assert not rules().mimics(Change(path=f"/workspace/{path}", kind=ChangeKind.FILE))


@pytest.mark.parametrize("pattern", ["", "!", "/", "**", "!**/"])
def test_patterns_that_hold_everywhere_are_refused(pattern: str) -> None:
    """A pattern that would protect or release everything is an error, not a policy."""
    with pytest.raises(ValueError, match="everywhere"):
        Patterns.of([pattern])


@pytest.mark.parametrize(("pattern", "holds", "fails"), [
    ("*.py", ["a.py", "x/a.py", "a.py/b"], ["a.pyc"]),
    ("/a.py", ["a.py"], ["x/a.py"]),
    ("x/*.py", ["x/a.py"], ["x/y/a.py", "y/x/a.py"]),
    ("x/**/a", ["x/a", "x/y/a", "x/y/z/a"], ["xa", "y/x/a"]),
    ("**/x/y", ["x/y", "a/x/y", "a/x/y/z"], ["x/a/y"]),
    ("x/**", ["x", "x/a", "x/a/b"], ["y/x"]),
    ("f?o", ["foo", "a/fxo"], ["f/o", "fo"]),
    ("f[a-c]o", ["fao"], ["fdo", "f/o"]),
    ("f[!a-c]o", ["fdo"], ["fao", "f/o"]),
    ("a[b", ["a[b"], ["ab"]),
    ("a.b+c", ["a.b+c"], ["aXb+c", "a.bbc"]),
])
def test_patterns_are_like_gitignore(pattern: str, holds: list[str], fails: list[str]) -> None:
    """Anchoring, stars, classes and folders mean what they mean in a .gitignore."""
    patterns = Patterns.of([pattern])
    assert [path for path in holds if not patterns.decide(path)] == []
    assert [path for path in fails if patterns.decide(path)] == []
