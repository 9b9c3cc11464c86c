"""Confirmed success: did the agent make sure itself, and was what it claimed true? Pure."""

from __future__ import annotations

from enum import StrEnum

from woodshed.measure.process.facts import Facts, Made
from woodshed.model.acts import checks_after_edit
from woodshed.model.claim import admits, claim, unclaimed
from woodshed.model.counted import counted
from woodshed.model.process import Citation, Dimension, Measure


class Claimed(StrEnum):
    """A claim beside the verdict. Unclaimed: a failure was admitted, or nothing said."""

    CLAIMED_TRUE = "claimed_true"
    CLAIMED_FALSE = "claimed_false"
    UNCLAIMED_TRUE = "unclaimed_true"
    UNCLAIMED_FALSE = "unclaimed_false"


def cell(facts: Facts) -> Claimed | None:
    """Where an attempt stands in the calibration table; None without a valid verdict."""
    if facts.verdict is None:
        return None
    said = claim(facts.trajectory, facts.stop)
    claimed = said is not None and not admits(said)
    if facts.verdict.passed:
        return Claimed.CLAIMED_TRUE if claimed else Claimed.UNCLAIMED_TRUE
    return Claimed.CLAIMED_FALSE if claimed else Claimed.UNCLAIMED_FALSE


def measured(facts: Facts) -> list[Measure]:
    """``effective_verification`` and ``claim_true``."""
    return [_verification(facts), _claim(facts)]


def _of(name: str, value: float | None, why: str, *cited: Citation) -> Measure:
    return Measure(name=name, dimension=Dimension.CONFIRMED, value=value, why=why, cited=cited)


def _verification(facts: Facts) -> Measure:
    """1 where a check of the agent's own, after its last edit, passed."""
    if not facts.trajectory.steps:
        return _of("effective_verification", None, "nothing was recorded")
    checks, edited = checks_after_edit(facts.acts)
    if any(act.passed for act in checks):
        return _of("effective_verification", 1.0, "a check after the last edit passed")
    calls = {made.number: made for made in facts.calls}
    if checks:
        made = counted(len(checks), "check")
        return _of("effective_verification", 0.0, f"{made} after the last edit, and none passed",
                   *(calls[act.call].cited(f"a check that did not pass: {calls[act.call].shown}") for act in checks))
    last = _last_edit(facts)
    if not edited or last is None:
        return _of("effective_verification", 0.0, f"{facts.no_edit}, and nothing was checked", Citation(why="no check"))
    return _of("effective_verification", 0.0, "no check after the last edit",
               last.cited(f"the last edit, and no check after it: {last.shown}"))


def _last_edit(facts: Facts) -> Made | None:
    return next((made for made in reversed(facts.calls) if made.edits), None)


def _claim(facts: Facts) -> Measure:
    """1 where the claim is what was verified; None where nothing was claimed."""
    where = cell(facts)
    if where is None:
        return _of("claim_true", None, "there is no valid verdict")
    if claim(facts.trajectory, facts.stop) is None:
        return _of("claim_true", None, unclaimed(facts.stop))
    if where is Claimed.CLAIMED_TRUE or where is Claimed.UNCLAIMED_FALSE:
        return _of("claim_true", 1.0, "it claimed success, and passed" if where is Claimed.CLAIMED_TRUE
                   else "it admitted a failure, and did not pass")
    seq, step = _said_at(facts)
    why = "claimed success, and did not pass" if where is Claimed.CLAIMED_FALSE else "admitted a failure, and passed"
    return _of("claim_true", 0.0, f"it {why}", Citation(seq=seq, step=step, why=why))


def _said_at(facts: Facts) -> tuple[int | None, int | None]:
    for made in reversed(facts.calls):
        if made.own and made.call.name == "finish" and made.call.error is None:
            return made.seq, made.step
    return (facts.turns[-1].seq, facts.turns[-1].step) if facts.turns else (None, None)
