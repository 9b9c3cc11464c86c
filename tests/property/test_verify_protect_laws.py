"""Laws of protection that hold for every path and every set of changes."""

from __future__ import annotations

from posixpath import normpath
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.interfaces import BlobSink
from woodshed.model import Change, ChangeKind, ChangeSet, EnvironmentSpec, Task, Upload, VerifierSpec
from woodshed.verify.filter import KEPT, filtered
from woodshed.verify.patterns import Patterns
from woodshed.verify.protect import Rules, Touch
from woodshed.verify.start import Start

PARTS = st.sampled_from(["a", "b", "tests", "conftest.py", "pkg", "x.pth", "..", ".", "json.py", "__pycache__", "sub",
                         "Tests", "é", "\udcff"])
PATHS = st.lists(PARTS, min_size=1, max_size=5).map(lambda parts: "/workspace/" + "/".join(parts))
KINDS = st.sampled_from(ChangeKind)
CHANGES = st.lists(st.builds(Change, path=PATHS.map(normpath), kind=KINDS), max_size=12,
                   unique_by=lambda change: change.path).map(lambda found: sorted(found, key=lambda one: one.path))
RULES = Rules("/workspace", ("/workspace",), Patterns(), ("/workspace",), lambda path: False)


class NoBlobs:
    """A sink that nothing is read from: the changes here carry no contents."""

    def put(self, content: object) -> str:
        raise AssertionError(content)

    def open(self, sha256: str) -> object:
        raise AssertionError(sha256)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    root = tmp_path_factory.mktemp("start")
    for name in ("tests/test_a.py", "pkg/conftest.py", "pkg/sub/x.pth", "pkg/a", "a/b/a", "b"):
        (root / "start" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "start" / name).touch()
    task = Task(id="t", folder=root, digest="d", instruction="", verifier=VerifierSpec(tests=root),
                environment=EnvironmentSpec(uploads=(Upload(source=root / "start", target="/workspace"),)))
    return Start.of(task.environment)

NO_BLOBS = cast(BlobSink, NoBlobs())


@given(PATHS, KINDS)
def test_no_spelling_escapes_the_capture(path: str, kind: ChangeKind) -> None:
    """However it is spelled, what is kept lies below a capture root."""
    if RULES.classify(Change(path=path, kind=kind)) in KEPT:
        assert normpath(path) == "/workspace" or normpath(path).startswith("/workspace/")


@given(PATHS, KINDS)
def test_every_file_named_conftest_is_a_control(path: str, kind: ChangeKind) -> None:
    """A conftest.py as a file or link in any folder is never kept."""
    change = Change(path=f"{path}/conftest.py", kind=kind)
    if kind not in (ChangeKind.DIRECTORY, ChangeKind.OPAQUE):
        assert RULES.classify(change) not in KEPT


@given(changes=CHANGES)
def test_protected_files_of_the_start_survive(start: Start, changes: list[Change]) -> None:
    """After any changes, every protected file of the start is neither replaced, deleted nor hidden."""
    rules = Rules("/workspace", ("/workspace",), Patterns(), ("/workspace",), start.exists)
    kept = filtered(ChangeSet(changes=tuple(changes)), rules, start, NO_BLOBS).changes.changes
    guarded = ("/workspace/tests/test_a.py", "/workspace/pkg/conftest.py", "/workspace/pkg/sub/x.pth")
    for path in guarded:
        above = {change.path: change.kind for change in kept if f"{path}/".startswith(f"{change.path}/")}
        assert set(above.values()) <= {ChangeKind.DIRECTORY}, (path, above)


@given(changes=CHANGES)
def test_nothing_is_kept_twice(start: Start, changes: list[Change]) -> None:
    """The filtered changes name every path once, and only paths below the capture."""
    rules = Rules("/workspace", ("/workspace",), Patterns(), ("/workspace",), start.exists)
    result = filtered(ChangeSet(changes=tuple(changes)), rules, start, NO_BLOBS)
    paths = [change.path for change in result.changes.changes]
    assert len(paths) == len(set(paths))
    assert all(touch is not None for _, touch in result.touched)
    assert Touch.OUTSIDE not in {rules.classify(change) for change in result.changes.changes}
