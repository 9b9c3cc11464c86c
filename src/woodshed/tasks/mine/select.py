"""Which commits may become tasks: decided from the commit alone, before anything runs. Pure but for its reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from woodshed.tasks.mine.formatting import Difference, difference
from woodshed.tasks.mine.history import Changed, Commit
from woodshed.tasks.mine.paths import TEST_FILES, Kind, kind_of
from woodshed.tasks.mine.reasons import Reason, Rejection

MAX_FILES = 40
"""Source files that a task may ask to change."""
MAX_LINES = 1500
"""Lines of source that a task may ask to change. SWE-bench's largest reference changes some 3000; few are worth it."""
MAX_FILE_BYTES = 1_000_000
"""Of one changed file."""
Read = Callable[[str], bytes]
"""The content of a blob by its id. Asked only for what changed."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One changed file with both contents; None where it is absent."""

    path: str
    before: bytes | None
    after: bytes | None

    def lines(self) -> tuple[list[str], list[str]]:
        """(removed, added) lines, without their ends. A file that is no text has none."""
        old, new = _lines(self.before), _lines(self.after)
        removed: list[str] = []
        added: list[str] = []
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=True).get_opcodes():
            if tag != "equal":
                removed += old[i1:i2]
                added += new[j1:j2]
        return removed, added


@dataclass(frozen=True, slots=True)
class Candidate:
    """A commit worth running: what it changes in source and in tests, layout-only changes left out."""

    commit: Commit
    source: tuple[Edit, ...]
    tests: tuple[Edit, ...]
    patterns: tuple[str, ...] = TEST_FILES

    @property
    def test_files(self) -> tuple[str, ...]:
        """The changed files that hold tests and are there afterwards."""
        return tuple(edit.path for edit in self.tests
                     if edit.after is not None and kind_of(edit.path, self.patterns) is Kind.TEST)


def screen(commit: Commit, reverted: Mapping[str, str]) -> Rejection | None:
    """What the commit's head alone says against it. ``reverted``: id (maybe short) → id of what reverts it."""
    if len(commit.parents) > 1:
        return Rejection(reason=Reason.MERGE)
    if not commit.parents:
        return Rejection(reason=Reason.INITIAL)
    if commit.reverts:
        return Rejection(reason=Reason.REVERT, detail=", ".join(sha[:10] for sha in commit.takes_back))
    for sha, by in reverted.items():
        if commit.id.startswith(sha):
            return Rejection(reason=Reason.REVERTED, detail=f"by {by[:10]}")
    return None


def select(commit: Commit, changed: Sequence[Changed], read: Read,
           patterns: Sequence[str] = TEST_FILES) -> Candidate | Rejection:
    """The candidate that ``commit`` is, or why it is none. ``patterns`` name the project's test files."""
    kinds = {change.path: kind_of(change.path, patterns) for change in changed}
    if not changed or set(kinds.values()) <= {Kind.DOCS}:
        return Rejection(reason=Reason.DOCS_ONLY, detail=_named(kinds))
    code = [change for change in changed if kinds[change.path] in (Kind.SOURCE, Kind.TEST, Kind.SUPPORT)]
    if len(code) > 4 * MAX_FILES:
        return Rejection(reason=Reason.TOO_LARGE, detail=f"{len(code)} files")
    edits = [Edit(change.path, _read(read, change.before), _read(read, change.after)) for change in code]
    if large := [edit.path for edit in edits if max(len(edit.before or b""), len(edit.after or b"")) > MAX_FILE_BYTES]:
        return Rejection(reason=Reason.TOO_LARGE, detail=f"{large[0]} has more than {MAX_FILE_BYTES} bytes")
    said = {edit.path: difference(edit.before, edit.after) if edit.path.endswith(".py") else "code" for edit in edits}
    if edits and all(word != "code" for word in said.values()):
        return _same_program(said)
    source = tuple(edit for edit in edits if kinds[edit.path] is Kind.SOURCE)
    tests = tuple(edit for edit in edits if kinds[edit.path] is not Kind.SOURCE)
    effective = tuple(edit for edit in source if said[edit.path] == "code")
    tested = tuple(edit for edit in tests if said[edit.path] == "code")
    if missing := _missing(bool(source), bool(tests), bool(effective), bool(tested)):
        return Rejection(reason=missing, detail=_named(kinds))
    return _sized(Candidate(commit, effective, tested, tuple(patterns)))


def _missing(source: bool, tests: bool, effective: bool, tested: bool) -> Reason | None:
    if not tests:
        return Reason.NO_TESTS_CHANGED
    if not source:
        return Reason.NO_SOURCE_CHANGED
    return None if effective and tested else Reason.FORMATTING_ONLY


def _same_program(said: Mapping[str, Difference]) -> Rejection:
    words = set(said.values())
    reason = Reason.DOCS_ONLY if words == {"docstrings"} else Reason.FORMATTING_ONLY
    return Rejection(reason=reason, detail=", ".join(sorted(said))[:200])


def _sized(candidate: Candidate) -> Candidate | Rejection:
    if len(candidate.source) > MAX_FILES:
        return Rejection(reason=Reason.TOO_LARGE, detail=f"{len(candidate.source)} source files")
    count = sum(len(part) for edit in candidate.source for part in edit.lines())
    if count > MAX_LINES:
        return Rejection(reason=Reason.TOO_LARGE, detail=f"{count} lines of source")
    return candidate


def _read(read: Read, blob: str | None) -> bytes | None:
    return None if blob is None else read(blob)


def _lines(content: bytes | None) -> list[str]:
    if content is None or b"\0" in content:
        return []
    return content.decode("utf-8", "replace").splitlines()


def _named(kinds: Mapping[str, Kind]) -> str:
    shown = sorted(kinds)[:3]
    return ", ".join(shown)[:200] + (f" and {len(kinds) - len(shown)} more" if len(kinds) > len(shown) else "")
