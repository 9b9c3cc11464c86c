"""Craft: is the patch one that a person would like to review, and does it do its work? Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatch

from woodshed.measure.process.facts import Edited, Facts, name_of, relative
from woodshed.model import TestOutcome
from woodshed.model.counted import counted
from woodshed.model.diff import unified
from woodshed.model.process import Citation, Dimension, Measure

HUNKS, FILES = 10, 5
"""Up to so many a patch is easy to look through; beyond, these factors of reviewability fall as 1/n."""
_LEFT = re.compile(
    r"\b(?:breakpoint\(\)|i?pdb\.set_trace|import i?pdb\b|console\.log\(|debugger;|dbg!\(|var_dump\(|binding\.pry"
    r"|print\(f?['\"](?:DEBUG|debug|XXX|HERE|here)\b|FIXME|XXX)|^(?:<{7}|>{7}|={7})(?: |$)")
_SCRATCH = ("*.orig", "*.rej", "*.bak", "*.swp", "*~", "debug*.py", "scratch*", "tmp_*", "nohup.out", "core")
_GENERATED = ("*.min.js", "*.min.css", "*.map", "*.pyc", "*.o", "*.so", "*.class", "package-lock.json", "yarn.lock",
              "poetry.lock", "Cargo.lock", "*.log")
_GENERATED_FOLDERS = ("/dist/", "/build/", "/node_modules/", "/__pycache__/", "/target/", "/.venv/", "/coverage/")


def measured(facts: Facts) -> list[Measure]:
    """``patch_lines``, ``patch_ratio``, ``relevant_lines``, ``reviewability``, ``recovered_tests``."""
    return [*_size(facts), _relevant(facts), _reviewability(facts), _recovered(facts)]


def _of(name: str, value: float | None, why: str, cited: Sequence[Citation] = (), *, unit: str = "share") -> Measure:
    return Measure.model_validate({"name": name, "dimension": Dimension.CRAFT, "value": value, "why": why,
                                   "cited": tuple(cited), "unit": unit})


def _size(facts: Facts) -> list[Measure]:
    """Lines added and removed, and how many the reference has for each of them: above 1 where it has more."""
    if facts.patch is None:
        why = f"the changes are unknown: {facts.why_not('patch')}"
        return [_of("patch_lines", None, why, unit="lines"), _of("patch_ratio", None, why)]
    lines = facts.patch.lines
    size = _of("patch_lines", float(lines), f"in {counted(len(facts.patch.touched), 'file')}", unit="lines")
    if facts.reference is None or not facts.reference.lines:
        return [size, _of("patch_ratio", None, f"the reference's size is unknown: {facts.why_not('reference')}")]
    if not lines:
        return [size, _of("patch_ratio", None, "nothing was changed")]
    wanted = facts.reference.lines
    largest = sorted(facts.patch.files, key=lambda file: -(file.added + file.removed))[:3] if lines > wanted else []
    cited = [Citation(why=f"{counted(file.added + file.removed, 'line')} in {relative(file.path, facts.workdir)}")
             for file in largest]
    why = f"{counted(lines, 'line')}, the reference {wanted}"
    return [size, _of("patch_ratio", min(1.0, wanted / lines), why, cited)]


def _relevant(facts: Facts) -> Measure:
    """The share of changed lines in files that the reference changes, too."""
    if facts.patch is None or facts.reference is None:
        missing = "patch" if facts.patch is None else "reference"
        return _of("relevant_lines", None, f"the {missing}'s files are unknown: {facts.why_not(missing)}")
    if not facts.patch.lines:
        return _of("relevant_lines", None, "nothing was changed")
    known = set(facts.reference.touched)
    beside = [file for file in facts.patch.files if not file.test and file.path not in known]
    lines = sum(file.added + file.removed for file in beside)
    return _of("relevant_lines", 1 - lines / facts.patch.lines,
               f"{facts.patch.lines - lines} of {facts.patch.lines} lines are in the reference's files",
               [Citation(why=f"{counted(file.added + file.removed, 'line')} in {relative(file.path, facts.workdir)}")
                for file in beside])


def _reviewability(facts: Facts) -> Measure:
    """The product of five factors, each from 0 to 1: hunks, files, churn of blanks, generated files, leftovers."""
    if facts.files is None:
        return _of("reviewability", None, f"the changes are unknown: {facts.why_not('files')}")
    if not facts.files:
        return _of("reviewability", None, "nothing was changed")
    hunks, blank, lines, left = 0, 0, 0, list[str]()
    for file in facts.files:
        read = _read(file)
        hunks, blank, lines = hunks + read[0], blank + read[1], lines + read[2]
        left += [f"left in {relative(file.path, facts.workdir)}: {text}" for text in read[3]]
    left += [f"a scratch file: {relative(file.path, facts.workdir)}" for file in facts.files
             if file.after is not None and any(fnmatch(name_of(file.path), pattern) for pattern in _SCRATCH)]
    made = [relative(file.path, facts.workdir) for file in facts.files if file.binary or _generated(file.path)]
    factors = {
        f"{counted(hunks, 'hunk')}": min(1.0, HUNKS / max(1, hunks)),
        f"{counted(len(facts.files), 'file')}": min(1.0, FILES / len(facts.files)),
        f"{blank} of {lines} lines differ in blanks alone": 1 - blank / lines if lines else 1.0,
        f"{counted(len(made), 'generated or binary file')}": 1 / (1 + len(made)),
        f"{counted(len(left), 'leftover')}": 1 / (1 + len(left) / 2),
    }
    cited = [Citation(why=f"{what}: × {factor:.2f}") for what, factor in factors.items() if factor < 1]
    cited += [Citation(why=text) for text in (*left[:10], *(f"generated or binary: {path}" for path in made[:10]))]
    return _of("reviewability", math.prod(factors.values()), ", ".join(factors), cited)


def _read(file: Edited) -> tuple[int, int, int, list[str]]:
    """(hunks, lines that differ in blanks alone, changed lines, leftovers among those added)."""
    if file.binary:
        return 0, 0, 0, []
    text = unified(file.path, file.before, file.after, max_lines=20_000).splitlines()
    if not text or not text[0].startswith("--- "):
        return 1, 0, 0, []
    body = text[2:]
    added = [line[1:] for line in body if line.startswith("+")]
    removed = [line[1:] for line in body if line.startswith("-")]
    same = Counter(filter(None, map(_bare, removed))) & Counter(filter(None, map(_bare, added)))
    moved = Counter(filter(str.strip, removed)) & Counter(filter(str.strip, added))
    left = [found.group().strip()[:60] for line in added if (found := _LEFT.search(line[:500])) is not None]
    changed = len(added) + len(removed)
    return sum(line.startswith("@@") for line in body), 2 * (same.total() - moved.total()), changed, left


def _bare(line: str) -> str:
    return "".join(line.split())


def _generated(path: str) -> bool:
    return any(fnmatch(name_of(path), pattern) for pattern in _GENERATED) or any(part in path for part in
                                                                                _GENERATED_FOLDERS)


def _recovered(facts: Facts) -> Measure:
    """Of the expected tests that fail on the untouched start, those that pass in the end."""
    if facts.verdict is None:
        return _of("recovered_tests", None, "there is no valid verdict")
    if facts.failed_before is None:
        return _of("recovered_tests", None, f"what failed before is unknown: {facts.why_not('start_tests')}")
    if not facts.failed_before:
        return _of("recovered_tests", None, "no expected test failed before")
    still = [name for name in facts.failed_before if facts.verdict.tests.get(name) is not TestOutcome.PASSED]
    total = len(facts.failed_before)
    return _of("recovered_tests", 1 - len(still) / total, f"{total - len(still)} of {total} recovered",
               [Citation(why=f"does not pass: {name}") for name in still[:10]])
