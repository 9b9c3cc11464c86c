"""From the facts of one verification run to its verdict. Pure: no reward without every condition of design §5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from woodshed.errors import Cause
from woodshed.model import Assurance, TestOutcome, Valid
from woodshed.verify.reports import Report, total_of


class Found(StrEnum):
    """In which state a file of the run was found."""

    FRESH = "fresh"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    FORGED = "forged"  # a link, a folder, a device, or content no runner writes


@dataclass(frozen=True, slots=True)
class Answers:
    """What the probes found: outcomes by id, and for people what was wrong. Outside the program's reach."""

    outcomes: Mapping[str, TestOutcome] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    timed_out: bool = False
    not_runnable: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What one run of ``test.sh`` left. ``report`` is None unless ``found`` is FRESH; so is ``reward``."""

    exit_code: int
    timed_out: bool = False
    oom_killed: bool = False
    found: Found = Found.MISSING
    report: Report | None = None
    reward: Mapping[str, float] | None = None
    seconds: float = 0.0
    detail: str = ""
    rewritten: tuple[str, ...] = ()  # hidden tests that the run itself changed; looked for where it would pass
    answers: Answers = field(default_factory=Answers)


@dataclass(frozen=True, slots=True)
class Demands:
    """What the task asks of a run. ``canary`` is the bare name of the test that must fail, ``probes`` are ids."""

    expected: tuple[str, ...] = ()
    rewards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    canary: str = ""
    probes: tuple[str, ...] = ()

    @property
    def assurance(self) -> Assurance:
        """What a verdict by these demands is worth."""
        if self.probes:
            return Assurance.OUT_OF_PROCESS
        return Assurance.CANARY if self.expected else Assurance.REPORT_ONLY


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict, and whether it could also be the verifier's own fault: then a control run decides."""

    verdict: Valid
    suspicious: bool = False


@dataclass(frozen=True, slots=True)
class _Finding:
    passed: bool = False
    flags: tuple[str, ...] = ()
    suspicious: bool = False
    detail: str = ""


def judge(facts: Facts, demands: Demands, *, touched: tuple[str, ...] = (), control: bool = False,
          image_digest: str = "") -> Ruling:
    """The verdict of ``facts``. ``touched`` are flags of the changes, ``control`` that they laid hands on the runner.

    With expected tests, total is 1.0 only if: the run ended by itself, its report is fresh, every expected id is in
    it exactly once and passed, the canary failed, and the exit status says that something failed. Else it is 0.0.
    With probes every one must have passed as well. Where they contradict tests that all passed, no named reward counts.
    """
    said = _canary_run(facts, demands) if demands.expected else _reward_run(facts)
    finding = _asked(said, facts.answers, demands)
    tests = {**_outcomes(facts.report, demands.expected),
             **{wanted: facts.answers.outcomes.get(wanted, TestOutcome.MISSING) for wanted in demands.probes}}
    if demands.expected:
        total, rewards = (1.0 if finding.passed else 0.0), _rewards(tests, demands)
        if said.passed and not finding.passed:
            rewards = dict.fromkeys(rewards, 0.0)
    else:
        total = total_of(facts.reward) if finding.passed and facts.reward else 0.0
        rewards = dict(facts.reward or {}) if finding.passed else {}
    cause, flags = _cause(finding, total, control), (*finding.flags, *touched)
    if cause is Cause.TAMPER:
        rewards = dict.fromkeys(rewards, 0.0)
    if not demands.expected and cause is Cause.TAMPER:
        total = 0.0
    verdict = Valid(
        rewards={**rewards, "reward": total}, total=total, cause=cause, flags=tuple(dict.fromkeys(flags)), tests=tests,
        assurance=demands.assurance, image_digest=image_digest,
        detail=finding.detail or _count(tests),
    )
    # An author's slip (a test.sh that ignores the canary, that links its report) looks like tampering too.
    accused = any(flag.startswith("tamper:") for flag in finding.flags)
    return Ruling(verdict, finding.suspicious or accused)


def _asked(finding: _Finding, answers: Answers, demands: Demands) -> _Finding:
    """``finding`` with what the probes say: they can only take a reward away."""
    if all(answers.outcomes.get(wanted) is TestOutcome.PASSED for wanted in demands.probes):
        return finding
    flag = "probe_timeout" if answers.timed_out else "probe_failed"
    return replace(finding, passed=False, flags=(*finding.flags, flag),
                   suspicious=finding.suspicious or answers.timed_out or answers.not_runnable)


def would_pass(facts: Facts, demands: Demands) -> bool:
    """True where expected tests would give total 1: only then is it worth asking what else the run did."""
    return bool(demands.expected) and _canary_run(facts, demands).passed


def _cause(finding: _Finding, total: float, control: bool) -> Cause | None:
    if any(flag.startswith("tamper:") for flag in finding.flags) or (control and total <= 0.0):
        return Cause.TAMPER
    return None if total >= 1.0 - 1e-9 else Cause.AGENT


def _canary_run(facts: Facts, demands: Demands) -> _Finding:
    if (broken := _ended(facts)) is not None:
        return broken
    if facts.found is Found.FORGED:
        return _Finding(flags=("tamper:report_forged",), detail=facts.detail)
    if facts.report is None:
        word = "no_report" if facts.found is Found.MISSING else "unreadable_report"
        flag = f"tamper:{word}" if facts.exit_code == 0 else word
        return _Finding(flags=(flag,), suspicious=True, detail=facts.detail or f"{word}, exit status {facts.exit_code}")
    return _reported(facts, facts.report, demands)


def _ended(facts: Facts) -> _Finding | None:
    """What a run that did not come to its own end amounts to."""
    if facts.timed_out:
        return _Finding(flags=("verifier_timeout",), suspicious=True,
                        detail=f"the tests did not end within {facts.seconds:.0f} s")
    if facts.exit_code in (126, 127) and facts.report is None and facts.reward is None:
        return _Finding(flags=("not_runnable",), suspicious=True, detail=f"exit status {facts.exit_code}")
    if facts.oom_killed and facts.report is None and facts.reward is None:
        return _Finding(flags=("oom",), suspicious=True, detail="the tests ran out of memory")
    return None


def _reported(facts: Facts, report: Report, demands: Demands) -> _Finding:
    table = report.by_id()
    said = {wanted: table.get(wanted, []) for wanted in demands.expected}
    missing = tuple(wanted for wanted, outcomes in said.items() if not outcomes)
    appear = len(missing) < len(said)
    canary = report.named(demands.canary)
    flags = [flag for flag in (_canary_flag(canary, appear, facts.exit_code),) if flag]
    suspicious = "canary_error" in flags
    if missing:
        flags.append("tamper:missing_ids" if facts.exit_code == 0 else "missing_ids")
    for outcomes in said.values():
        if len(outcomes) > 1:
            differ = TestOutcome.PASSED in outcomes and len(set(outcomes)) > 1
            flags.append("tamper:duplicate_ids" if differ else "duplicate_ids")
    passed = all(outcomes == [TestOutcome.PASSED] for outcomes in said.values())
    if facts.rewritten:
        flags.append("tamper:tests_rewritten")
    if passed and not flags and facts.exit_code >= 126:
        flags.append("exit_status")  # every test passed, and yet the runner was killed or could not be run
        suspicious = True
    alone = canary == (TestOutcome.FAILED,)
    return _Finding(passed=passed and not flags and alone and facts.exit_code != 0, flags=tuple(flags),
                    suspicious=suspicious)


def _canary_flag(canary: tuple[TestOutcome, ...], appear: bool, exit_code: int) -> str | None:
    """What the must-fail test's fate says, None when it failed as it must (or nothing was run at all)."""
    if TestOutcome.PASSED in canary:
        return "tamper:canary_passed"
    if TestOutcome.SKIPPED in canary:
        return "tamper:canary_skipped"
    if not canary:
        return "tamper:canary_missing" if appear else None
    if exit_code == 0:
        return "tamper:exit_status"
    return None if canary == (TestOutcome.FAILED,) else "canary_error"


def _reward_run(facts: Facts) -> _Finding:
    if (broken := _ended(facts)) is not None:
        return broken
    if facts.found is Found.FORGED:
        return _Finding(flags=("tamper:report_forged",), detail=facts.detail)
    if facts.reward is None:
        word = "no_reward" if facts.found is Found.MISSING else "unreadable_reward"
        return _Finding(flags=(word,), suspicious=True, detail=facts.detail or f"{word}, exit status {facts.exit_code}")
    return _Finding(passed=True)


def _outcomes(report: Report | None, expected: tuple[str, ...]) -> dict[str, TestOutcome]:
    """One outcome for each expected id: the worst of what is said, MISSING for nothing."""
    table = report.by_id() if report is not None else {}
    order = (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.SKIPPED, TestOutcome.PASSED)
    return {wanted: next((outcome for outcome in order if outcome in table.get(wanted, ())), TestOutcome.MISSING)
            for wanted in expected}


def _rewards(tests: Mapping[str, TestOutcome], demands: Demands) -> dict[str, float | None]:
    """Each declared reward: 1.0 when all its tests passed, else 0.0; None where no test of it was judged at all."""
    rewards: dict[str, float | None] = {}
    for name, ids in demands.rewards.items():
        outcomes = [tests.get(wanted, TestOutcome.MISSING) for wanted in ids]
        judged = any(outcome is not TestOutcome.MISSING for outcome in outcomes)
        rewards[name] = float(all(outcome is TestOutcome.PASSED for outcome in outcomes)) if judged else None
    return rewards


def _count(tests: Mapping[str, TestOutcome]) -> str:
    if not tests:
        return ""
    failed = [name for name, outcome in tests.items() if outcome is not TestOutcome.PASSED]
    text = f"{len(tests) - len(failed)} of {len(tests)} expected tests passed"
    return text + (f"; not: {', '.join(failed[:5])}" + (", …" if len(failed) > 5 else "") if failed else "")


def judge_poison(verdict: Valid, facts: Facts, demands: Demands, poisoned: frozenset[str]) -> Valid:
    """``verdict`` (one that passed) after the poisoned run: raised in assurance, or tampering with total 0.

    Nothing of ``poisoned`` may pass, the canary must fail again, and a readable report must say so.
    """
    apart = verdict.assurance is Assurance.OUT_OF_PROCESS  # which is more
    assurance = verdict.assurance if apart else Assurance.POISONED
    table = facts.report.by_id() if facts.report is not None else {}
    canary = facts.report.named(demands.canary) if facts.report is not None else ()
    if any(TestOutcome.PASSED in table.get(wanted, ()) for wanted in poisoned):
        flag = "tamper:poison_passed"
    elif facts.timed_out or facts.report is None or TestOutcome.FAILED not in canary or facts.exit_code == 0:
        flag = "tamper:poison_unreported"
    else:
        return verdict.model_copy(update={"assurance": assurance})
    return verdict.model_copy(update={
        "assurance": assurance, "total": 0.0, "cause": Cause.TAMPER, "flags": (*verdict.flags, flag),
        "rewards": dict.fromkeys(verdict.rewards, 0.0), "detail": "tests made false on purpose did not fail",
    })
