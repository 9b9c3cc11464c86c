"""Variant: one wrong end state of a task's workspace, which a verifier worth trusting fails. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from woodshed.model.diff import unified

Files = Mapping[str, bytes | None]
"""Contents by path relative to the workdir, laid over another tree; None deletes."""
_PATCH_LINES = 400


class Kind(StrEnum):
    """How it was made: a hunk of the reference left out, its lines mutated, a fix that only looks like one."""

    HUNK = "hunk"
    MUTANT = "mutant"
    SUPERFICIAL = "superficial"


@dataclass(frozen=True, slots=True)
class Variant:
    """An end state that should not pass.

    ``files`` lie over the START tree and hold the reference's other changes too where ``kind`` is hunk or mutant.
    ``patch`` is what an author reads: a unified diff from the reference's end state (hunk, mutant) or from the start
    (superficial) to the variant's; contents that are no UTF-8 text give a line of sizes instead. ``line`` is where, in
    that first file, from 1; 0 where no one line is concerned. ``name`` is unique in its list and always the same.
    """

    name: str
    kind: Kind
    operator: str
    path: str
    line: int
    patch: str
    files: Files


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant that may be made. ``make`` gives its differences from the reference (superficial: from the start).

    It gives None where it turns out to be no variant. ``block`` groups candidates of one hunk.
    """

    kind: Kind
    operator: str
    path: str
    line: int
    block: int
    make: Callable[[], Files | None]


def realised(candidate: Candidate, name: str, start: Mapping[str, bytes], solved: Files) -> Variant | None:
    """The variant, or None where it would not differ from what it departs from."""
    made = candidate.make()
    if made is None:
        return None
    whole = candidate.kind is Kind.SUPERFICIAL
    before: dict[str, bytes | None] = dict(start) if whole else {**start, **solved}
    changed = {path: content for path, content in made.items() if before.get(path) != content}
    if not changed:
        return None
    over = {} if whole else dict(solved)
    files = {path: content for path, content in {**over, **changed}.items() if start.get(path) != content}
    patch = "".join(unified(path, before.get(path), changed[path], max_lines=_PATCH_LINES) for path in sorted(changed))
    return Variant(name, candidate.kind, candidate.operator, candidate.path, candidate.line, patch, files)


def named(candidates: list[Candidate]) -> list[tuple[str, Candidate]]:
    """Each candidate with its name: kind, path, line, operator, and a number where that occurs again."""
    seen: dict[str, int] = {}
    pairs = []
    for candidate in candidates:
        path = candidate.path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        name = f"{candidate.kind}:{path}:{candidate.line}:{candidate.operator}"
        seen[name] = seen.get(name, 0) + 1
        pairs.append((name if seen[name] == 1 else f"{name}#{seen[name]}", candidate))
    return pairs
