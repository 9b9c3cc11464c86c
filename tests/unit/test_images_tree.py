"""A plan of files: what it hashes is what it writes, and links of an image are followed inside it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.errors import UsageError
from woodshed.sandbox.images.tree import EPOCH_S, Entry, Plan, digest, landing, place

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 100
)
LEAVES = st.one_of(
    st.builds(lambda body, x: Entry("file", 0o755 if x else 0o644, body), st.binary(max_size=50), st.booleans()),
    st.builds(lambda to: Entry("link", 0o777, to), NAMES),
    st.just(Entry("directory")),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    plan: Plan = {}
    for parts in draw(st.lists(st.lists(NAMES, min_size=1, max_size=3), max_size=8)):
        path = "/".join(parts)
        taken = plan.get(path)
        parents = [str(parent) for parent in PurePosixPath(path).parents]
        if taken is None and all(plan.get(parent, Entry("directory")).kind == "directory" for parent in parents):
            place(plan, path, draw(LEAVES))
    return plan


@settings(max_examples=60, deadline=None)
@given(plans())
def test_a_written_plan_holds_exactly_what_was_planned_and_keeps_its_digest(plan: Plan) -> None:
    """Whatever is planned is found on disk, with its mode and the common time, under the digest of the plan alone."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        root.mkdir()
        assert digest(plan, root) == digest(plan)
        found = {str(path.relative_to(root)) for path in root.rglob("*")}
        assert found == set(plan)
        for path, entry in plan.items():
            info = (root / path).lstat()
            assert info.st_mtime == EPOCH_S
            if entry.kind == "file":
                assert (root / path).read_bytes() == entry.content
                assert stat.S_IMODE(info.st_mode) == entry.mode
            elif entry.kind == "link":
                assert str((root / path).readlink()) == entry.content
            else:
                assert stat.S_ISDIR(info.st_mode)


@pytest.mark.parametrize("change", [
    {"a": Entry("file", 0o644, b"2")}, {"a": Entry("file", 0o755, b"1")}, {"b": Entry("file", 0o644, b"1")},
    {"a": Entry("link", 0o777, "1")}, {"a": Entry("directory")},
])
def test_every_property_of_an_entry_is_in_the_digest(change: Plan) -> None:
    """Another content, mode, name or kind gives another digest."""
    assert digest({"a": Entry("file", 0o644, b"1")}) != digest(change)


def test_a_source_that_became_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    """A source swapped for a FIFO or a link after planning is an error, not a hang and not what the link names."""
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="not a regular file"):
        digest({"a": Entry("file", 0o644, fifo)})
    with pytest.raises(UsageError, match="cannot be read"):
        digest({"a": Entry("file", 0o644, link)})


def test_nothing_is_placed_below_a_file_or_link() -> None:
    """A planned file or link is no parent."""
    for kind in (Entry("file"), Entry("link", 0o777, "/usr")):
        with pytest.raises(UsageError, match="no directory"):
            place({"a": kind}, "a/b/c", Entry("file"))


@pytest.mark.parametrize(("path", "lands"), [
    ("/bin/x", "/usr/bin/x"), ("/lib/../x", "/usr/x"), ("/deep/er/up/y", "/deep/y"), ("/absolute/z", "/usr/z"),
    ("/escape/etc", "/etc"), ("/plain/a/b", "/plain/a/b"), ("/", "/"), ("/hidden/x", "/hidden/x"),
])
def test_links_are_followed_inside_the_image(tmp_path: Path, path: str, lands: str) -> None:
    """A path lands where it would inside: absolute links start at the image's root, and no ``..`` leaves it."""
    root, top = tmp_path / "root", tmp_path / "top"
    (root / "deep/er").mkdir(parents=True)
    (top / "hidden").mkdir(parents=True)
    for name, to in {"bin": "usr/bin", "lib": "usr/lib", "deep/er/up": "..", "absolute": "/usr",
                     "escape": "../../../..", "hidden": "/usr"}.items():
        (root / name).symlink_to(to)
    assert landing(path, (top, root)) == lands


def test_a_circle_of_links_is_an_error(tmp_path: Path) -> None:
    """Links that lead to each other end with an error."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UsageError, match="circle"):
        landing("/a/x", (tmp_path,))
