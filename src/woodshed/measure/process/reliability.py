"""Command reliability: did calls run where and how they could, and was what failed put right? Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from posixpath import basename

from woodshed.measure.process.facts import Facts, Made
from woodshed.model.process import Dimension, Measure

WITHIN = 5
"""Calls after a failure in which its purpose must succeed for it to count as put right."""
_SHELL = r"(?:/bin/|/usr/bin/)?(?:ba|da|z|k)?sh: (?:line )?(?:\d+: )?"
_WHO = r"^[\w./+-]{1,60}: "  # a program that speaks of its own call; a traceback of what it ran says it otherwise


class Failure(StrEnum):
    """Why a call could do nothing where and how it was made. A failed check or a search without a match is none."""

    MALFORMED = "malformed call"
    NOT_FOUND = "command not found"
    MISSING_PATH = "missing path"
    WRONG_PLACE = "wrong directory"
    FORBIDDEN = "forbidden"


_SAID: Sequence[tuple[Failure, re.Pattern[str]]] = [(kind, re.compile(said, re.MULTILINE)) for kind, said in (
    (Failure.MALFORMED, rf"^{_SHELL}.{{0,200}}(?:syntax error|unexpected EOF|unexpected end of file|unterminated)"),
    (Failure.MALFORMED, rf"{_WHO}(?:invalid|unrecognized|unknown|illegal|unsupported) (?:option|argument)"),
    (Failure.WRONG_PLACE, rf"^{_SHELL}cd: "),
    (Failure.WRONG_PLACE, r"^fatal: not a git repository"),
    (Failure.WRONG_PLACE, r"^make: \*\*\* (?:No rule to make target|No targets specified)"),
    (Failure.WRONG_PLACE, r"^npm (?:ERR!|error) .{0,80}(?:enoent|ENOENT)"),
    (Failure.WRONG_PLACE, rf"{_WHO}.{{0,300}}: (?:Is a directory|Not a directory)$"),
    (Failure.NOT_FOUND, rf"^{_SHELL}.{{1,200}}: (?:command )?not found$"),
    (Failure.NOT_FOUND, r"^\S{0,60}python[\d.]*: No module named \S+$"),
    (Failure.NOT_FOUND, r"^env: .{1,200}: No such file or directory$"),
    (Failure.MISSING_PATH, rf"{_WHO}.{{0,300}}(?:\[Errno 2\] )?No such file or directory$"),
    (Failure.MISSING_PATH, r"^ERROR: file or directory not found: "),
    (Failure.FORBIDDEN, rf"{_WHO}.{{0,300}}(?:Permission denied|Operation not permitted|Read-only file system)$"),
)]  # fmt: skip
_ANY = 2000  # characters from either end of an output that are looked at
_FILE_TOOLS = frozenset({"read_file", "write_file", "edit_file"})
_IDLE = frozenset({"cd", "bash", "sh", "python", "python3", "sudo", "env", ".", "/workspace"})


def failure(facts: Facts, made: Made) -> Failure | None:
    """Why the call could do nothing; None where it ran, whatever its program then found."""
    if made.call.error is not None:
        return Failure.MALFORMED
    seen = made.seen
    if seen is None or seen.interrupted:
        return None
    if facts.refused_between(made.seq, facts.result_seq(made)):
        return Failure.FORBIDDEN
    if made.call.name in _FILE_TOOLS:
        return _of_file_tool(seen.content) if seen.exit_code else None
    content = seen.content if len(seen.content) <= 2 * _ANY else seen.content[:_ANY] + "\n" + seen.content[-_ANY:]
    found = next((kind for kind, pattern in _SAID if pattern.search(content)), None)
    if found is None and seen.exit_code in (126, 127):
        return Failure.FORBIDDEN if seen.exit_code == 126 else Failure.NOT_FOUND
    return found


def _of_file_tool(content: str) -> Failure | None:
    if content.startswith("There is no "):
        return Failure.MISSING_PATH
    if content.startswith("'old' ") or "'old' is empty" in content:
        return Failure.MALFORMED
    if content.rstrip().endswith("is a folder."):
        return Failure.WRONG_PLACE
    return Failure.FORBIDDEN if "Permission denied" in content or "Read-only" in content else None


def measured(facts: Facts) -> list[Measure]:
    """``valid_calls`` and ``recovery``."""
    failed = [(made, kind) for made in facts.calls if (kind := failure(facts, made)) is not None]
    return [_valid_calls(facts, failed), _recovery(facts, failed)]


def _valid_calls(facts: Facts, failed: list[tuple[Made, Failure]]) -> Measure:
    total = len(facts.calls)
    cited = tuple(made.cited(f"{kind.value}: {made.shown}") for made, kind in failed)
    return Measure(name="valid_calls", dimension=Dimension.RELIABILITY, cited=cited,
                   value=None if not total else 1 - len(failed) / total,
                   why="no call was made" if not total else f"{total - len(failed)} of {total} calls could run")


def _recovery(facts: Facts, failed: list[tuple[Made, Failure]]) -> Measure:
    broken = {made.number for made, _ in failed}
    left = [(made, kind) for made, kind in failed if not _put_right(facts, made, broken)]
    cited = tuple(made.cited(f"{kind.value}, and not put right within {WITHIN} calls: {made.shown}")
                  for made, kind in left)
    return Measure(name="recovery", dimension=Dimension.RELIABILITY, cited=cited,
                   value=1 - len(left) / len(failed) if failed else None,
                   why=f"{len(failed) - len(left)} of {len(failed)} failures put right" if failed else "nothing failed")


def _put_right(facts: Facts, failed: Made, broken: set[int]) -> bool:
    """A working call with the same purpose soon after: it shares a program or the name of a file."""
    purpose = _purpose(failed)
    later = facts.calls[failed.number:failed.number + WITHIN]
    return any(made.number not in broken and _went_well(made) and purpose & _purpose(made) for made in later)


def _went_well(made: Made) -> bool:
    """It ended well, or it is a check, whose failing tells something."""
    return made.seen is not None and not made.seen.interrupted and (made.seen.exit_code in (0, None) or made.checks)


def _purpose(made: Made) -> set[str]:
    return {basename(word.rstrip("/")) for word in made.words()} - _IDLE - {""}
