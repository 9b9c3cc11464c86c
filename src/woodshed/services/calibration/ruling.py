"""From the evidence of a check to a task's label. Pure: attempts in, label and figures out. Invalid ones are none."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from woodshed.errors import Cause
from woodshed.model import Invalid, Label, StopReason, Survivor, TestOutcome, Tries, Valid, Verdict
from woodshed.model.calibration import STRONG
from woodshed.model.counted import counted

REWARD = "reward"
"""Stands for a test's id where a task names no expected tests: what repeats is its total."""
_UNRUN = frozenset({"not_runnable", "no_report", "unreadable_report", "no_reward", "unreadable_reward", "missing_ids",
                    "canary_error", "setup_failed", "oom"})
"""Flags of a run in which the tests did not come to be judged."""
_MISSING = re.compile(
    r"(?:ModuleNotFoundError|ImportError): [^\n]{1,160}|[Cc]annot find (?:module|package) [^\n]{1,120}|"
    r"[^\n]{0,80}: command not found|[^\n]{0,80}: not found$|error while loading shared libraries[^\n]{0,120}",
    re.MULTILINE,
)
"""How interpreters, shells and linkers say that a program or a library is not there."""
_TIGHT_TIME, _TIGHT_MEMORY = 0.5, 0.8


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt that a check made. ``output`` is the end of what its tests printed, where they did not pass."""

    verdict: Verdict | None
    stop: StopReason | None = None
    act_s: float = 0.0
    verify_s: float | None = None
    memory_bytes: int | None = None
    output: str = ""

    @property
    def valid(self) -> Valid | None:
        """The verdict where it counts."""
        return self.verdict if isinstance(self.verdict, Valid) else None

    @property
    def passed(self) -> bool:
        """True where it counts and passed."""
        return self.valid is not None and self.valid.passed


@dataclass(frozen=True, slots=True)
class Judged:
    """A wrong end state of the reference, and how it was judged."""

    survivor: Survivor
    attempt: Try


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a check found out about one task."""

    solvable: bool
    nop: Sequence[Try] = ()
    reference: Sequence[Try] = ()
    cheats: Mapping[str, Try] = field(default_factory=dict)
    variants: Sequence[Judged] = ()
    leaks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Ruling:
    """The label, None where the check broke before anything could be said; why; and what an author should know."""

    label: Label | None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def rule(evidence: Evidence) -> Ruling:
    """The label of what was found: the first that applies, in the order of what makes all else meaningless."""
    nop, reference = tries(evidence.nop), tries(evidence.reference)
    told = _warnings(evidence)
    if broken := _broken(evidence):
        return Ruling(broken[0], (broken[1],), told)
    if not evidence.solvable:
        return Ruling(Label.ACCEPTS_NOTHING, ("there is no reference: nothing shows that it can be solved",), told)
    if nop.valid <= nop.invalid or reference.valid <= reference.invalid:
        return Ruling(None, (_unjudged(evidence),), told)
    if not reference.passed:
        return Ruling(*_rejected(evidence), told)
    if flaky := list(_flaky(evidence)):
        return Ruling(Label.FLAKY, tuple(flaky), told)
    if nop.passed:
        return Ruling(Label.ACCEPTS_ANYTHING, (f"doing nothing passes ({nop.passed} of {nop.valid})",), told)
    if evidence.leaks:
        return Ruling(Label.LEAKS_SOLUTION, tuple(evidence.leaks), told)
    weak = list(_weak(evidence))
    return Ruling(Label.WEAK if weak else Label.SOUND, tuple(weak), told)


def tries(attempts: Sequence[Try]) -> Tries:
    """Counted."""
    return Tries(
        valid=sum(one.valid is not None for one in attempts),
        passed=sum(one.passed for one in attempts),
        invalid=sum(isinstance(one.verdict, Invalid) for one in attempts),
    )


def strength(evidence: Evidence) -> tuple[int, int, float | None]:
    """(killed, judged, their share): of the wrong end states that got a verdict, those that were failed."""
    judged = [one.attempt for one in evidence.variants if one.attempt.valid is not None]
    killed = sum(not one.passed for one in judged)
    return killed, len(judged), killed / len(judged) if judged else None


def survivors(evidence: Evidence) -> tuple[Survivor, ...]:
    """The wrong end states that passed."""
    return tuple(one.survivor for one in evidence.variants if one.attempt.passed)


def flake_rates(attempts: Sequence[Try]) -> dict[str, float]:
    """By test id, the share of valid repeats that disagree with the majority of them; empty for less than two."""
    valid = [one.valid for one in attempts if one.valid is not None]
    if len(valid) < 2:
        return {}
    rates = {}
    for name in sorted({name for verdict in valid for name in verdict.tests}):
        seen = Counter(verdict.tests.get(name, TestOutcome.MISSING) for verdict in valid)
        rates[name] = 1 - seen.most_common(1)[0][1] / len(valid)
    totals = Counter(verdict.passed for verdict in valid)
    if not rates or (not any(rates.values()) and len(totals) > 1):
        rates[REWARD] = 1 - totals.most_common(1)[0][1] / len(valid)
    return rates


def p95(values: Sequence[float]) -> float | None:
    """The 95th percentile by nearest rank; None of nothing."""
    ordered = sorted(values)
    return ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else None


def _broken(evidence: Evidence) -> tuple[Label, str] | None:
    """What the task declares cannot be provided, or its verifier does not work: for a reason that stays."""
    made = [*evidence.nop, *evidence.reference]
    faults = [one.verdict for one in made if isinstance(one.verdict, Invalid)]
    lasting = [fault for fault in faults if fault.cause is Cause.ENVIRONMENT and not fault.retryable]
    if lasting and not any(one.valid is not None for one in made):
        return Label.BROKEN_ENVIRONMENT, lasting[0].detail
    # A verifier is at fault where it fails its own reference, with nobody's changes about.
    failed = [one for one in made if isinstance(one.verdict, Invalid) and one.verdict.cause is Cause.VERIFIER]
    if failed and not any(one.valid is not None for one in evidence.reference):
        return _why_rejected(failed)
    return None


def _rejected(evidence: Evidence) -> tuple[Label, tuple[str, ...]]:
    label, reason = _why_rejected([one for one in evidence.reference if one.verdict is not None])
    return label, (reason,)


def _why_rejected(attempts: Sequence[Try]) -> tuple[Label, str]:
    """Whether the reference is rejected because something it needs is not there, or because the tests say so."""
    said = "\n".join(one.output for one in attempts)
    missing = _MISSING.search(said)
    if missing is not None:
        return Label.BROKEN_ENVIRONMENT, f"something is missing: {missing[0].strip()}"
    flags = {flag for one in attempts if one.valid is not None for flag in one.valid.flags}
    details = [one.verdict.detail for one in attempts if one.verdict is not None and one.verdict.detail]
    stops = {one.stop for one in attempts}
    how = "; solve.sh fails" if StopReason.SOLUTION_FAILED in stops else ""
    if unrun := sorted(flags & _UNRUN):
        return Label.BROKEN_ENVIRONMENT, f"the reference's tests do not come to be run: {', '.join(unrun)}{how}"
    return Label.ACCEPTS_NOTHING, f"the reference fails{how}: {details[0] if details else 'without a word'}"


def _unjudged(evidence: Evidence) -> str:
    faults = [one.verdict for one in (*evidence.nop, *evidence.reference) if isinstance(one.verdict, Invalid)]
    return f"not judged: {faults[0].detail}" if faults else "not judged: the check did not come to its end"


def _flaky(evidence: Evidence) -> Iterator[str]:
    reference, nop = tries(evidence.reference), tries(evidence.nop)
    if reference.passed < reference.valid:
        yield f"the reference passes {reference.passed} of {reference.valid} times"
    if 0 < nop.passed < nop.valid:
        yield f"doing nothing passes {nop.passed} of {nop.valid} times"
    rates = {name: rate for name, rate in flake_rates(evidence.reference).items() if rate}
    for name, rate in sorted(rates.items(), key=lambda pair: -pair[1])[:3]:
        yield f"{name} disagrees with itself {100 * rate:.0f} % of the time"


def _weak(evidence: Evidence) -> Iterator[str]:
    earned = [name for name, one in evidence.cheats.items() if one.passed]
    if earned:
        yield f"earns a reward by cheating: {', '.join(earned)}"
    killed, judged, share = strength(evidence)
    if share is not None and share < STRONG:
        yield f"fails {killed} of {judged} wrong end states ({share:.2f}; {STRONG} makes a strong one)"


def _warnings(evidence: Evidence) -> tuple[str, ...]:
    told = []
    unsteady = [name for name, rate in flake_rates(evidence.nop).items() if rate]
    if unsteady:
        told.append(f"on the untouched start these disagree with themselves: {', '.join(unsteady[:3])}")
    for who, made in (("nobody", tries(evidence.nop)), ("the reference", tries(evidence.reference))):
        if made.invalid:
            told.append(f"{counted(made.invalid, 'attempt')} by {who} broke by no one's doing, and say nothing")
    invalid = sum(isinstance(one.attempt.verdict, Invalid) for one in evidence.variants)
    if invalid:
        told.append(f"{invalid} variants could not be judged")
    return tuple(told)


def limit_warnings(act: tuple[float | None, float], verify: tuple[float | None, float],
                   memory: tuple[float | None, float | None]) -> tuple[str, ...]:
    """Of each (measured, declared): what the declared limit does not comfortably hold."""
    told = []
    for name, (measured, declared) in (("agent.timeout_sec", act), ("verifier.timeout_sec", verify)):
        if measured is not None and measured > _TIGHT_TIME * declared:
            told.append(f"{name} {declared:g} is tight: the reference takes {measured:.1f} s")
    used, most = memory
    if used is not None and most is not None and used > _TIGHT_MEMORY * most:
        told.append(f"memory_mb {most:g} is tight: the verifier takes {used:.0f} MB")
    return tuple(told)
