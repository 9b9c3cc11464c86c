"""Unified diffs of two contents. Pure: bytes in, text out."""

from __future__ import annotations

from collections import Counter
from difflib import unified_diff
from itertools import pairwise

from woodshed.model.changes import Change, ChangeKind

_WORK = 100_000_000  # steps of difflib, a second or two; scattered changes of a long file cost their square


def described(change: Change, before: bytes | None, after: bytes | None) -> str:
    """One change in words or as a diff; empty for a folder that was merely made or whose mode changed.

    ``before`` and ``after`` are contents, None where there is none or it is too large to be looked at.
    """
    match change.kind:
        case ChangeKind.DELETED:
            return unified(change.path, before, None) if before else f"deleted {change.path}\n"
        case ChangeKind.SYMLINK:
            return f"link {change.path} -> {change.target}\n"
        case ChangeKind.FILE if after is None:
            return f"changed {change.path}: {change.size} bytes\n"
        case ChangeKind.FILE:
            return unified(change.path, before, after) or ("" if after else f"empty {change.path}\n")
        case _:
            return ""


def unified(path: str, before: bytes | None, after: bytes | None, *, max_lines: int = 400) -> str:
    """The unified diff that turns ``before`` into ``after``; None means the file is absent on that side.

    Binary contents (a NUL byte, or not UTF-8) give one line of sizes, and so do contents that would take minutes to
    compare. Longer diffs are cut with a mark.
    """
    if before == after:
        return ""
    try:
        old, new = _lines(before), _lines(after)
    except UnicodeDecodeError:
        return f"Binary {path}: {_size(before)} -> {_size(after)}\n"
    if _work(old, new) > _WORK:
        return f"Changed throughout {path}: {_size(before)} -> {_size(after)}\n"
    source = "/dev/null" if before is None else f"a/{path.lstrip('/')}"
    target = "/dev/null" if after is None else f"b/{path.lstrip('/')}"
    lines = [line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
             for line in unified_diff(old, new, source, target)]
    if len(lines) > max_lines:
        lines = [*lines[:max_lines], f"... {len(lines) - max_lines} more lines\n"]
    return "".join(lines)


def _lines(content: bytes | None) -> list[str]:
    if content is None:
        return []
    if b"\0" in content:
        raise UnicodeDecodeError("utf-8", content, 0, 1, "a NUL byte")
    parts = content.decode("utf-8").split("\n")  # only LF ends a line for diff and patch; splitlines knows others
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _work(old: list[str], new: list[str]) -> int:
    """About how many steps difflib takes at most: a pass over all pairs of equal lines for each block that stayed.

    A block ends where two lines that follow each other do not do so on the other side. Lines that make up more than a
    hundredth of a long ``new`` are not paired ("popular", in difflib's words).
    """
    before, after = Counter(pairwise(old)), Counter(pairwise(new))
    blocks = (before - after).total() + (after - before).total() + 1
    times, popular = Counter(new), len(new) // 100 + 1 if len(new) >= 200 else len(new)
    pairs = sum(times[line] for line in old if times[line] <= popular)
    return blocks * (pairs + len(old) + len(new)) if old and new else 0


def _size(content: bytes | None) -> str:
    return "absent" if content is None else f"{len(content)} bytes"
