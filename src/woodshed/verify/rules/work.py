"""Rules over what was changed: patch_size, scope, protected, check."""

from __future__ import annotations

import math
import re

from woodshed.model.counted import counted
from woodshed.model.grade import CheckRun
from woodshed.model.rules import CheckRule, PatchSizeRule, ProtectedRule, ScopeRule
from woodshed.verify.patterns import compiled
from woodshed.verify.rules.evidence import Evidence, Score

_UNRUNNABLE = (126, 127)  # the shell's: not executable, not found
_STEERS = ("tamper:tests_rewritten", "tamper:protected_path", "weakens_tests")


def patch_size(rule: PatchSizeRule, evidence: Evidence) -> Score:
    """Full up to ``slack`` times the reference, then falling to the floor. Nothing done is no small patch."""
    observed = evidence.observed
    if observed.patch is None:
        return Score(None, f"the size of the changes is unknown: {observed.why_not('patch')}")
    if rule.lines is None and observed.reference is None:
        return Score(None, f"the reference's size is unknown: {observed.why_not('reference')}")
    wanted = max(1, rule.lines or (observed.reference.lines if observed.reference is not None else 0))
    lines = observed.patch.lines
    why = f"{counted(lines, 'line')}, the reference {wanted}"
    if lines == 0:
        return Score(rule.floor, f"nothing was changed; {why}")
    return Score(falling(lines / wanted, rule.slack, rule.floor), why)


def scope(rule: ScopeRule, evidence: Evidence) -> Score:
    """The share of touched files that are in scope. Nothing touched is the floor."""
    observed = evidence.observed
    if observed.patch is None:
        return Score(None, f"the files changed are unknown: {observed.why_not('patch')}")
    touched = observed.patch.touched
    if rule.files:
        if evidence.task is None:
            return Score(None, "the task is not here: its working folder is unknown")
        top, allowed = evidence.task.environment.workdir.rstrip("/") + "/", compiled(rule.files)
        outside = [path for path in touched if not allowed.fullmatch(path.removeprefix(top))]
    elif observed.reference is None:
        return Score(None, f"the reference's files are unknown: {observed.why_not('reference')}")
    else:
        known = frozenset(observed.reference.touched)
        outside = [path for path in touched if path not in known]
    if not touched:
        return Score(rule.floor, "nothing was changed")
    share = (len(touched) - len(outside)) / len(touched)
    why = f"{len(outside)} of {len(touched)} files out of scope" + (f": {', '.join(outside[:5])}" if outside else "")
    return Score(rule.floor + (1 - rule.floor) * share, why)


def protected(rule: ProtectedRule, evidence: Evidence) -> Score:
    """0 where tests of the start were changed or removed, or a file that steers them was laid; new tests are none."""
    weakened = evidence.observed.weakened
    flags = [flag for flag in evidence.verdict.flags if flag in _STEERS[:1 if weakened is not None else None]]
    if flags or weakened:
        return Score(0.0, ", ".join((*flags, *(weakened or ())[:5])))
    return Score(1.0)


def check(rule: CheckRule, evidence: Evidence) -> Score:
    """The command on the end tree beside the start tree. What the start tree cannot run says nothing."""
    found = next((ran for ran in evidence.observed.checks if ran.key == rule.key), None)
    if found is None:
        return Score(None, f"the check never ran: {evidence.observed.why_not('checks')}")
    before, after = found.before, found.after
    if before.exit_code in _UNRUNNABLE or (before.timed_out and rule.measure == "exit"):
        how = f"did not end within {rule.timeout_s:g} s" if before.timed_out else f"exit status {before.exit_code}"
        return Score(None, f"the check cannot run on the start tree: {how}")
    if rule.measure == "exit":
        passed = after.exit_code == 0 and not after.timed_out
        return Score(1.0 if passed else rule.floor, f"exit status {before.exit_code} before, {after.exit_code} after")
    return _compared(rule, before, after)


def _compared(rule: CheckRule, before: CheckRun, after: CheckRun) -> Score:
    start, end = _value(rule, before), _value(rule, after)
    if start is None or (start <= 0 and rule.target is not None):
        return Score(None, f"the start tree gives no {rule.measure} to compare with")
    if end is None:
        return Score(rule.floor, f"{start:g} before; the end tree gives no {rule.measure}")
    why = f"{start:g} before, {end:g} after"
    ratio = _worse(start, end) if rule.better == "lower" else _worse(end, start)
    if rule.target is None:
        return Score(falling(ratio, rule.slack, rule.floor), why)
    goal = rule.target if rule.better == "lower" else 1 / rule.target
    share = min(1.0, max(0.0, (1 - ratio) / (1 - goal)))
    return Score(rule.floor + (1 - rule.floor) * share, why)


def _value(rule: CheckRule, run: CheckRun) -> float | None:
    """The number of one run; None where it gave none. A benchmark that failed measured nothing."""
    if run.timed_out:
        return None
    if rule.measure == "seconds":
        return run.seconds if run.exit_code == 0 else None
    for match in reversed(list(re.finditer(rule.pattern, run.output))):
        text = next((group for group in match.groups() if group is not None), match.group())
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    return None


def _worse(good: float, value: float) -> float:
    """How many times worse ``value`` is where ``good`` was (lower is better); counts from zero up are one too many."""
    if value <= good:
        return max(0.0, value) / good if good > 0 else 1.0
    return value / good if good > 0 else 1.0 + value - good


def falling(ratio: float, slack: float, floor: float) -> float:
    """1 up to ``slack``, then ``floor`` + (1 - ``floor``) · ``slack``/``ratio``: smooth, and never below the floor."""
    return 1.0 if ratio <= slack else floor + (1 - floor) * slack / ratio
