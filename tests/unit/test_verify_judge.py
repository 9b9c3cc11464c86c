"""From the facts of a run to its verdict: every condition of a reward, and the words for what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from woodshed.errors import Cause
from woodshed.model import Assurance, TestOutcome, Valid
from woodshed.verify.judge import Demands, Facts, Found, judge, judge_poison
from woodshed.verify.reports import Case, Report

P, F, S, E = TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.SKIPPED, TestOutcome.ERROR
DEMANDS = Demands(("t::a", "t::b"), {"half": ("t::a",), "other": ("t::b",)}, "canary")


def report(**outcomes: TestOutcome | tuple[TestOutcome, ...]) -> Report:
    cases = [(name, outcome) for name, given in outcomes.items()
             for outcome in (given if isinstance(given, tuple) else (given,))]
    return Report(tuple(Case(f"t::{name}", name, outcome) for name, outcome in cases), "junit")


def facts(exit_code: int = 1, found: Found = Found.FRESH, **outcomes: TestOutcome | tuple[TestOutcome, ...]) -> Facts:
    return Facts(exit_code=exit_code, found=found, report=report(**outcomes))


def ruled(given: Facts, **more: object) -> tuple[float, Cause | None, tuple[str, ...]]:
    verdict = judge(given, DEMANDS, **more).verdict  # type: ignore[arg-type]  # keywords of judge
    assert verdict.total is not None
    return verdict.total, verdict.cause, verdict.flags


def test_all_conditions_together_give_one() -> None:
    """Every expected id passed, the canary failed, the status agrees: total 1, each reward 1, nothing to say."""
    ruling = judge(facts(a=P, b=P, canary=F, extra=F), DEMANDS, image_digest="sha256:x")
    assert ruling.verdict == Valid(
        rewards={"half": 1.0, "other": 1.0, "reward": 1.0}, total=1.0, assurance=Assurance.CANARY,
        tests={"t::a": P, "t::b": P}, image_digest="sha256:x", detail="2 of 2 expected tests passed")
    assert not ruling.suspicious


def test_ordinary_failure_is_the_agents() -> None:
    """A failing expected test is the agent's failure, with the named rewards judged apart."""
    verdict = judge(facts(a=P, b=F, canary=F), DEMANDS).verdict
    assert (verdict.total, verdict.cause, verdict.flags) == (0.0, Cause.AGENT, ())
    assert verdict.rewards == {"half": 1.0, "other": 0.0, "reward": 0.0}
    assert "t::b" in verdict.detail


@pytest.mark.parametrize(("given", "flag", "cause"), [
    (facts(0, a=P, b=P, canary=P), "tamper:canary_passed", Cause.TAMPER),
    (facts(1, a=P, b=P, canary=P), "tamper:canary_passed", Cause.TAMPER),
    (facts(1, a=P, b=P, canary=(P, F)), "tamper:canary_passed", Cause.TAMPER),
    (facts(0, a=P, b=P), "tamper:canary_missing", Cause.TAMPER),
    (facts(1, a=P, b=P), "tamper:canary_missing", Cause.TAMPER),
    (facts(0, a=S, b=S, canary=S), "tamper:canary_skipped", Cause.TAMPER),
    (facts(0, a=P, b=P, canary=F), "tamper:exit_status", Cause.TAMPER),
    (facts(1, a=P, b=P, canary=E), "canary_error", Cause.AGENT),
    (facts(1, a=P, b=P, canary=(F, F)), "canary_error", Cause.AGENT),
    (facts(1, a=P, canary=F), "missing_ids", Cause.AGENT),
    (facts(2), "missing_ids", Cause.AGENT),
    (facts(0), "tamper:missing_ids", Cause.TAMPER),
    (facts(1, a=P, b=(P, F), canary=F), "tamper:duplicate_ids", Cause.TAMPER),
    (facts(1, a=P, b=(P, P), canary=F), "duplicate_ids", Cause.AGENT),
    (facts(1, a=P, b=(F, E), canary=F), "duplicate_ids", Cause.AGENT),
    (facts(139, a=P, b=P, canary=F), "exit_status", Cause.AGENT),
    (Facts(0, found=Found.MISSING), "tamper:no_report", Cause.TAMPER),
    (Facts(1, found=Found.MISSING), "no_report", Cause.AGENT),
    (Facts(0, found=Found.UNREADABLE), "tamper:unreadable_report", Cause.TAMPER),
    (Facts(3, found=Found.UNREADABLE), "unreadable_report", Cause.AGENT),
    (Facts(1, found=Found.FORGED), "tamper:report_forged", Cause.TAMPER),
    (Facts(127, found=Found.MISSING), "not_runnable", Cause.AGENT),
    (Facts(137, oom_killed=True), "oom", Cause.AGENT),
    (replace(facts(137, a=P, b=P, canary=F), timed_out=True), "verifier_timeout", Cause.AGENT),
])
def test_each_broken_condition_has_its_word(given: Facts, flag: str, cause: Cause) -> None:
    """Whatever is missing or contradicts gives total 0, a flag that says what, and the one who brought it about."""
    total, who, flags = ruled(given)
    assert (total, who) == (0.0, cause)
    assert flag in flags


@pytest.mark.parametrize("given", [facts(1, a=S, b=P, canary=F), facts(1, a=E, b=P, canary=F)])
def test_a_skip_or_error_is_no_pass(given: Facts) -> None:
    """A skipped or erring expected test counts as not passed."""
    assert ruled(given) == (0.0, Cause.AGENT, ())


def test_suspicious_outcomes_ask_for_a_control() -> None:
    """What could be the verifier's own fault asks for a control run; a plain pass or failure does not."""
    for given in (Facts(1), Facts(0), Facts(127), Facts(1, found=Found.FORGED), Facts(1, timed_out=True),
                  facts(0, a=P, b=P, canary=F), facts(1, a=P, b=P), facts(0, a=P, b=P, canary=P)):
        assert judge(given, DEMANDS).suspicious
    for given in (facts(a=P, b=P, canary=F), facts(a=F, b=P, canary=F), facts(2)):
        assert not judge(given, DEMANDS).suspicious


def test_touching_controls_colours_a_failure_only() -> None:
    """A failure that laid hands on controls is tampering with every reward 0; a pass keeps its total and the flag."""
    flags = ("tamper:protected_path",)
    failed = judge(facts(a=P, b=F, canary=F), DEMANDS, touched=flags, control=True).verdict
    assert (failed.cause, failed.flags) == (Cause.TAMPER, flags)
    assert failed.rewards == {"half": 0.0, "other": 0.0, "reward": 0.0}
    assert ruled(facts(a=P, b=P, canary=F), touched=flags, control=True) == (1.0, None, flags)
    assert ruled(facts(a=P, b=F, canary=F), touched=("weakens_tests",)) == (0.0, Cause.AGENT, ("weakens_tests",))


def test_what_was_not_judged_is_none() -> None:
    """A named reward none of whose tests was reported is None, never 0 or NaN; ``reward`` is always there."""
    assert judge(Facts(1), DEMANDS).verdict.rewards == {"half": None, "other": None, "reward": 0.0}
    assert judge(facts(1, a=P, canary=F), DEMANDS).verdict.rewards == {"half": 1.0, "other": None, "reward": 0.0}


def test_harbor_rewards_without_expected_tests() -> None:
    """Without expected ids the reward file decides, whatever the exit status, at the assurance ``report_only``."""
    verdict = judge(Facts(1, found=Found.FRESH, reward={"reward": 0.5, "speed": 2.0}), Demands()).verdict
    assert (verdict.total, verdict.assurance) == (0.5, Assurance.REPORT_ONLY)
    assert verdict.rewards == {"reward": 0.5, "speed": 2.0}
    full = judge(Facts(0, found=Found.FRESH, reward={"a": 1.0}), Demands()).verdict
    assert (full.total, full.cause, full.rewards) == (1.0, None, {"a": 1.0, "reward": 1.0})


@pytest.mark.parametrize(("given", "flag", "suspicious"), [
    (Facts(0), "no_reward", True), (Facts(1, found=Found.UNREADABLE), "unreadable_reward", True),
    (Facts(0, found=Found.FORGED), "tamper:report_forged", True), (Facts(1, timed_out=True), "verifier_timeout", True),
])
def test_harbor_without_a_reward(given: Facts, flag: str, suspicious: bool) -> None:
    """No readable reward file is total 0, and asks for a control run."""
    ruling = judge(given, Demands())
    assert (ruling.verdict.total, ruling.suspicious) == (0.0, suspicious)
    assert flag in ruling.verdict.flags


def test_a_poisoned_run_raises_or_condemns() -> None:
    """Poisoned ids that fail raise the assurance; one that passes, or a run that says nothing, is tampering."""
    passed = judge(facts(a=P, b=P, canary=F), DEMANDS).verdict
    raised = judge_poison(passed, facts(a=P, b=F, canary=F), DEMANDS, frozenset({"t::b"}))
    assert (raised.total, raised.assurance, raised.cause) == (1.0, Assurance.POISONED, None)
    for given in (facts(a=P, b=P, canary=F), Facts(1), facts(0, a=P, b=F, canary=F), facts(1, a=P, b=F, canary=P)):
        condemned = judge_poison(passed, given, DEMANDS, frozenset({"t::b"}))
        assert (condemned.total, condemned.cause) == (0.0, Cause.TAMPER)
        assert set(condemned.rewards.values()) == {0.0}
