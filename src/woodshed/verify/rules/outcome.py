"""Rules over the hidden tests: tests and no_regression."""

from __future__ import annotations

from collections.abc import Sequence

from woodshed.model import TestOutcome, Valid
from woodshed.model.rules import NoRegressionRule, TestsRule
from woodshed.verify.rules.evidence import Evidence, Score

_DOUBTED = ("verifier_timeout", "not_runnable", "oom", "exit_status", "canary_error", "duplicate_ids", "no_report",
            "unreadable_report", "setup_failed")
"""Flags of a run whose single results are not to be believed, even where the report says passed."""


def tests(rule: TestsRule, evidence: Evidence) -> Score:
    """All of the tests, or their fraction; the verifier's own reward for a task that names no tests."""
    verdict = evidence.verdict
    if rule.reward is not None:
        named = evidence.task.verifier.rewards.get(rule.reward, ()) if evidence.task is not None else ()
        if not named:
            return Score(None, f"the task has no reward '{rule.reward}'" if evidence.task else "the task is not here")
        return _passed(named, rule.mode, verdict)
    if rule.tests:
        return _passed(rule.tests, rule.mode, verdict)
    expected = evidence.task.verifier.expected_tests if evidence.task is not None else tuple(verdict.tests)
    if not expected or (rule.mode == "all" and not rule.tests):
        return Score(own_reward(verdict), verdict.detail)
    return _passed(expected, rule.mode, verdict)


def no_regression(rule: NoRegressionRule, evidence: Evidence) -> Score:
    """What passed before, still passing."""
    before = rule.tests or evidence.observed.start_tests
    if before is None:
        return Score(None, f"what passed before is unknown: {evidence.observed.why_not('start_tests')}")
    if not before:
        return Score(1.0, "no test passed before")
    return _passed(before, rule.mode, evidence.verdict)


def own_reward(verdict: Valid) -> float | None:
    """The verifier's own reward, from 0 to 1. Harbor's may lie outside; None where it gave none at all."""
    own = verdict.rewards.get("reward", verdict.total)
    return None if own is None else min(1.0, max(0.0, own))


def _passed(ids: Sequence[str], mode: str, verdict: Valid) -> Score:
    """A test that is not reported has not passed: an agent can bring that about."""
    doubted = [flag for flag in verdict.flags if flag in _DOUBTED or flag.startswith("tamper:canary")]
    if doubted and not verdict.passed:
        return Score(0.0, f"the run is not to be believed: {', '.join(doubted)}")
    failed = [wanted for wanted in ids if verdict.tests.get(wanted) is not TestOutcome.PASSED]
    why = f"{len(ids) - len(failed)} of {len(ids)} passed"
    why += f"; not: {', '.join(failed[:5])}" + (", …" if len(failed) > 5 else "") if failed else ""
    if mode == "all":
        return Score(0.0 if failed else 1.0, why)
    return Score((len(ids) - len(failed)) / len(ids), why)
