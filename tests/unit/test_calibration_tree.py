"""End states as change sets: what is asked for is what stands there once they are applied to the start."""

from __future__ import annotations

from pathlib import Path
from posixpath import dirname

from hypothesis import given
from hypothesis import strategies as st

from woodshed.model import Change, ChangeKind, ChangeSet
from woodshed.sandbox.conformance import MemoryBlobs
from woodshed.services.calibration.tree import Ends, Tree, solved_files

WORK = "/workspace"
NAMES = ["a", "b", "d/a", "d/b", "d/e/a", "f"]
contents = st.sampled_from([b"", b"1\n", b"2\n", b"3\n"])
starts = st.dictionaries(st.sampled_from(NAMES), contents, max_size=6)
ends = st.dictionaries(st.sampled_from(NAMES), contents | st.none(), max_size=6)


def captured(start: dict[str, bytes], end: dict[str, bytes | None], blobs: MemoryBlobs) -> ChangeSet:
    """What capture says about ``end`` laid over ``start``."""
    changes = []
    for name, content in end.items():
        if content is None and name in start:
            changes.append(Change(path=f"{WORK}/{name}", kind=ChangeKind.DELETED))
        elif content is not None and start.get(name) != content:
            changes.append(Change(path=f"{WORK}/{name}", kind=ChangeKind.FILE, mode=0o755, size=len(content),
                                  sha256=blobs.put(content)))
    return ChangeSet(changes=tuple(sorted(changes, key=lambda change: change.path)))


def applied(start: dict[str, bytes], changes: ChangeSet, blobs: MemoryBlobs) -> dict[str, bytes]:
    """The files that stand there then."""
    files = dict(start)
    for change in changes.changes:
        name = change.path.removeprefix(f"{WORK}/")
        if change.kind is not ChangeKind.DIRECTORY:
            files = {path: content for path, content in files.items() if path != name and dirname(path) != name
                     and not path.startswith(name + "/")}
        if change.kind is ChangeKind.FILE:
            assert change.sha256 is not None
            files[name] = blobs.open(change.sha256).read()
    return files


def laid(start: dict[str, bytes], over: dict[str, bytes | None]) -> dict[str, bytes]:
    return {name: content for name, content in {**start, **over}.items() if content is not None}


@given(start=starts, solved=ends, wanted=ends)
def test_an_end_state_is_what_was_asked_for(
    start: dict[str, bytes], solved: dict[str, bytes | None], wanted: dict[str, bytes | None]
) -> None:
    """Files of a variant stand as it says; all others as at the start, whatever the reference did to them."""
    blobs = MemoryBlobs()
    reference = captured(start, solved, blobs)
    made = solved_files(reference, start, blobs, WORK)
    assert laid(start, made) == laid(start, solved)
    state = Ends(Tree(start, ()), reference, made, WORK, blobs)
    for upon in (True, False):
        changes = state.changes(wanted, upon_reference=upon)
        assert applied(start, changes, blobs) == laid(start, wanted)
        assert [change.path for change in changes.changes] == sorted(change.path for change in changes.changes)


def test_all_else_that_the_reference_did_stays() -> None:
    """Links, folders, other places and modes are in a variant upon the reference, and in no superficial one."""
    blobs = MemoryBlobs()
    start = {"a": b"1\n", "run.sh": b"old\n"}
    new = b"new\n"
    kept = (
        Change(path="/logs/x", kind=ChangeKind.FILE, size=4, sha256=blobs.put(new)),
        Change(path=f"{WORK}/link", kind=ChangeKind.SYMLINK, target="a"),
        Change(path=f"{WORK}/made", kind=ChangeKind.DIRECTORY, mode=0o755),
    )
    script = Change(path=f"{WORK}/run.sh", kind=ChangeKind.FILE, mode=0o755, size=4, sha256=blobs.put(new))
    reference = ChangeSet(changes=(*kept, script))
    solved = solved_files(reference, start, blobs, WORK)
    assert solved == {"run.sh": new}
    state = Ends(Tree(start, (), frozenset({"a"})), reference, solved, WORK, blobs)
    mutant = state.changes({"run.sh": b"mut\n", "a": b"2\n"}, upon_reference=True)
    by_path = {change.path: change for change in mutant.changes}
    assert set(kept) <= set(mutant.changes)
    assert by_path[f"{WORK}/run.sh"].mode == 0o755
    assert by_path[f"{WORK}/a"].mode == 0o755
    assert state.changes({}, upon_reference=False).changes == ()
    assert set(state.changes({}, upon_reference=True).changes) == set(kept)


def test_what_is_no_content_is_left_out_in_turn() -> None:
    """A link, a folder nobody needs, a mode: one end state each, without it; contents and needed folders are none."""
    blobs = MemoryBlobs()
    start = {"tool": b"x\n"}
    changes = (
        Change(path=f"{WORK}/full", kind=ChangeKind.DIRECTORY), Change(path=f"{WORK}/full/a", kind=ChangeKind.FILE,
                                                                       size=2, sha256=blobs.put(b"a\n")),
        Change(path=f"{WORK}/link", kind=ChangeKind.SYMLINK, target="full"),
        Change(path=f"{WORK}/new", kind=ChangeKind.DIRECTORY),
        Change(path=f"{WORK}/tool", kind=ChangeKind.FILE, mode=0o755, size=2, sha256=blobs.put(b"x\n")),
    )  # fmt: skip
    reference = ChangeSet(changes=changes)
    state = Ends(Tree(start, ()), reference, solved_files(reference, start, blobs, WORK), WORK, blobs)
    left = {change.path.rpartition("/")[2]: without for change, without in state.left_out()}
    assert set(left) == {"link", "new", "tool"}
    assert all(len(without.changes) == len(changes) - 1 for without in left.values())


def test_a_replaced_folder_is_undone_for_one_file(tmp_path: Path) -> None:
    """Where the reference removed a folder, a variant that keeps one of its files has the folder, and no other file."""
    blobs = MemoryBlobs()
    start = {"d/a": b"1\n", "d/b": b"2\n"}
    reference = ChangeSet(changes=(Change(path=f"{WORK}/d", kind=ChangeKind.DELETED),))
    solved = solved_files(reference, start, blobs, WORK)
    assert solved == {"d/a": None, "d/b": None}
    state = Ends(Tree(start, ()), reference, solved, WORK, blobs)
    changes = state.changes({"d/b": None}, upon_reference=True)
    assert [(change.path, change.kind) for change in changes.changes] == [
        (f"{WORK}/d", ChangeKind.OPAQUE), (f"{WORK}/d/a", ChangeKind.FILE)]
    assert applied(start, changes, blobs) == {"d/a": b"1\n"}


@given(start=starts, first=ends, second=ends, wanted=ends)
def test_an_end_state_of_a_step_stands_upon_the_steps_before(
    start: dict[str, bytes], first: dict[str, bytes | None], second: dict[str, bytes | None],
    wanted: dict[str, bytes | None],
) -> None:
    """Files of a step's variant stand as it says; all others as the step before left them."""
    blobs = MemoryBlobs()
    between = laid(start, first)
    before = captured(start, {**dict.fromkeys(start), **between}, blobs)
    reference = captured(start, {**dict.fromkeys(start), **laid(between, second)}, blobs)
    made = {name: content for name, content in solved_files(reference, start, blobs, WORK).items()
            if between.get(name) != content}
    made |= {name: None for name in between if name not in laid(between, second)}
    made |= {name: content for name, content in laid(between, second).items() if between.get(name) != content}
    step = Ends(Tree(between, ()), reference, made, WORK, blobs, {change.path: change for change in before.changes},
                frozenset(start))
    for upon_reference in (True, False):
        changes = step.changes(wanted, upon_reference=upon_reference)
        assert applied(start, changes, blobs) == laid(between, wanted)
        gone = {change.path for change in changes.changes if change.kind is ChangeKind.DELETED}
        assert gone <= {f"{WORK}/{name}" for name in start}
