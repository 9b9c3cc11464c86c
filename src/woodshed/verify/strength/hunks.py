"""Hunks: each part of the reference left out in turn. Pure.

A verifier that passes without a part of the reference does not look at what that part does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import PurePosixPath

from woodshed.verify.protect import CACHE, CONTROL, HARMLESS, START_TEST
from woodshed.verify.strength.blocks import Block, blocks, joined, lines_of, put_back
from woodshed.verify.strength.languages import same_code
from woodshed.verify.strength.python import compiled, same_meaning
from woodshed.verify.strength.variant import Candidate, Files, Kind

_RENAMED = 0.5  # of the lines are the same: git's default for a rename
_PROSE = frozenset({".md", ".rst", ".adoc", ".markdown"})


def judged(start: Mapping[str, bytes], solved: Files) -> list[str]:
    """The paths of the reference that a verifier can be expected to look at.

    Not those that are set back before it runs (tests, their settings, caches), and documentation only where the
    reference changes nothing else.
    """
    changed = [path for path in sorted(solved) if solved[path] != start.get(path)]
    restored = (CACHE, CONTROL, HARMLESS, START_TEST)
    kept = [path for path in changed if not any(rule.fullmatch(path) for rule in restored)]
    code = [path for path in kept if PurePosixPath(path).suffix.lower() not in _PROSE]
    return code or kept


def hunks(start: Mapping[str, bytes], solved: Files, paths: list[str]) -> Iterator[Candidate]:
    """A candidate for each hunk: a file added, deleted or renamed, or a block of lines of a changed file."""
    moved = _renames(start, solved, paths)
    gone = set(moved.values())
    for path in paths:
        before, after = start.get(path), solved[path]
        if path in gone:
            continue
        if path in moved:
            yield _whole("rename-left-out", path, {path: None, moved[path]: after})
            yield _whole("old-name-kept", path, {moved[path]: start[moved[path]]})
        elif before is None:
            yield _whole("file-left-out", path, {path: None})
        elif after is None:
            yield _whole("deletion-left-out", path, {path: before})
        else:
            yield from _parts(path, before, after)


def _whole(operator: str, path: str, files: Files) -> Candidate:
    return Candidate(Kind.HUNK, operator, path, 0, 0, lambda: files)


def _parts(path: str, before: bytes, after: bytes) -> Iterator[Candidate]:
    if b"\0" in before + after:
        yield _whole("file-left-out", path, {path: before})  # a part of a binary file is no file
        return
    old, new = lines_of(before), lines_of(after)
    for number, group in enumerate(_sound(path, old, new)):
        make = partial(_left_out, path, old, new, group, after)
        yield Candidate(Kind.HUNK, "hunk-left-out", path, group.new_start + 1, number, make)


def _left_out(path: str, old: list[bytes], new: list[bytes], block: Block, after: bytes) -> Files | None:
    content = put_back(old, new, [block])
    return None if same(path, content, after) else {path: content}


def same(path: str, first: bytes, second: bytes) -> bool:
    """True where the contents differ in nothing that can be observed: comments, docstrings, layout."""
    if path.endswith((".py", ".pyi")):
        return same_meaning(first, second)
    return same_code(path, first, second)


def _sound(path: str, old: list[bytes], new: list[bytes]) -> list[Block]:
    """The blocks of a file. Python that would not compile without one is joined with the next until it does.

    A file that does not compile fails every test: leaving such a part out would say nothing of the verifier.
    """
    found = blocks(old, new)
    if not path.endswith(".py") or len(found) > _MANY:
        return found
    kept: list[Block] = []
    pending: Block | None = None
    for block in found:
        pending = joined(pending, block) if pending else block
        if compiled(put_back(old, new, [pending])) is not None:
            kept.append(pending)
            pending = None
    if pending is not None:
        kept = [*kept[:-1], joined(kept[-1], pending)] if kept else [pending]
    return kept


_MANY = 200  # blocks of one file that are worth compiling one by one


def _renames(start: Mapping[str, bytes], solved: Files, paths: list[str]) -> dict[str, str]:
    """New path by old path, best likeness first; a path is used once."""
    added = [path for path in paths if path not in start]
    deleted = [path for path in paths if solved[path] is None and path in start]
    pairs = sorted(
        ((-likeness, new, old) for new in added for old in deleted
         if (likeness := _likeness(start[old], solved[new] or b"")) >= _RENAMED),
    )
    moved: dict[str, str] = {}
    for _, new, old in pairs:
        if new not in moved and old not in moved.values():
            moved[new] = old
    return moved


def _likeness(first: bytes, second: bytes) -> float:
    if first == second:
        return 1.0
    one, other = Counter(lines_of(first)), Counter(lines_of(second))
    return 2 * (one & other).total() / max(1, one.total() + other.total())
