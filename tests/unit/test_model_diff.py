"""Unified diffs: what stands in them, and that none is worth minutes."""

from __future__ import annotations

import pytest

from woodshed.model.changes import Change, ChangeKind
from woodshed.model.diff import described, unified


def lines(*numbers: int) -> bytes:
    return "".join(f"{number}\n" for number in numbers).encode()


def test_an_edit_of_a_long_file_is_shown() -> None:
    """A few edits far apart in a long file are compared line by line."""
    before = list(range(20_000))
    after = [*before[:100], -1, *before[101:19_000], -2, *before[19_000:]]
    shown = unified("/a", lines(*before), lines(*after))
    assert "-100\n+-1\n" in shown
    assert "+-2\n" in shown
    assert len(shown.splitlines()) < 25


def test_scattered_changes_of_a_long_file_are_told_by_size() -> None:
    """Where the comparison would cost the square of thousands of lines, sizes are told; short files are shown."""
    for count, told in ((1_000, False), (50_000, True)):
        mixed = [number for pair in range(0, count, 2) for number in (pair + 1, pair)]
        doubled = [number for line in range(count) for number in (line, -line - 1)]
        for after in (mixed, doubled):
            shown = unified("/a", lines(*range(count)), lines(*after))
            assert shown.startswith("Changed throughout /a: ") is told, count
            assert shown


def test_equal_contents_and_binary_ones_have_no_lines() -> None:
    """Equal contents give nothing, binary ones their sizes, and an absent side is /dev/null."""
    assert unified("/a", b"x\n", b"x\n") == ""
    assert unified("/a", b"\0", None) == "Binary /a: 1 bytes -> absent\n"
    assert unified("/a", None, b"x") == "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n"


@pytest.mark.parametrize(("kind", "before", "after", "shown"), [
    (ChangeKind.FILE, None, b"", "empty /a\n"),
    (ChangeKind.FILE, b"x\n", b"x\n", ""),
    (ChangeKind.FILE, b"x\n", None, "changed /a: 7 bytes\n"),
    (ChangeKind.DELETED, None, None, "deleted /a\n"),
    (ChangeKind.DELETED, b"", None, "deleted /a\n"),
    (ChangeKind.DELETED, b"x\n", None, "--- a/a\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"),
    (ChangeKind.SYMLINK, None, None, "link /a -> /b\n"),
    (ChangeKind.DIRECTORY, None, None, ""),
])
def test_every_change_has_its_words(
    kind: ChangeKind, before: bytes | None, after: bytes | None, shown: str
) -> None:
    """A file made empty, removed, linked or too large to be looked at is told, and only folders are not."""
    assert described(Change(path="/a", kind=kind, size=7, target="/b"), before, after) == shown


def test_only_a_line_feed_ends_a_line() -> None:
    """Form feeds, lone carriage returns and Unicode's line separators stand within lines, as they do for patch."""
    shown = unified("/a", "a\x0cb\u2028c\rd\n".encode(), "a\x0cb\u2028c\re\n".encode())
    assert shown == "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-a\x0cb\u2028c\rd\n+a\x0cb\u2028c\re\n"
