"""Rules over tests and over what was changed, each on hand-made evidence; and how they make one total."""

from __future__ import annotations

from typing import Any

import pytest

from rulekit import TESTS, component, patch, rules, seen, task, value, verdict
from woodshed.errors import Cause
from woodshed.model import TestOutcome
from woodshed.model.grade import Checked, CheckRun, Observed, Patch
from woodshed.verify.rules import Evidence, graded

SIZE = {"kind": "patch_size"}
SCOPE = {"kind": "scope"}
LINT: dict[str, Any] = {"kind": "check", "name": "lint", "command": "ruff check .", "measure": "number"}


def test_tests_are_all_or_a_fraction() -> None:
    """All is the verifier's own reward; a fraction counts single tests."""
    assert value({"kind": "tests"}, seen()) == 1.0
    assert value({"kind": "tests"}, seen(judged=verdict(3))) == 0.0
    assert value({"kind": "tests", "mode": "fraction"}, seen(judged=verdict(3))) == 0.75
    assert value({"kind": "tests", "tests": TESTS[:2]}, seen(judged=verdict(3))) == 1.0
    assert value({"kind": "tests", "reward": "docs"}, seen(judged=verdict(1))) == 0.0


def test_a_named_reward_none_of_whose_tests_is_reported_is_zero_as_a_rule() -> None:
    """An agent can keep tests from being reported; by a rule that is no way out of a number."""
    broken = verdict(0, tests=dict.fromkeys(TESTS, TestOutcome.MISSING), flags=("missing_ids",))
    assert value({"kind": "tests", "reward": "docs"}, seen(judged=broken)) == 0.0


@pytest.mark.parametrize("flag", ["exit_status", "duplicate_ids", "canary_error", "verifier_timeout"])
def test_a_run_that_is_not_believed_has_no_part_of_its_tests(flag: str) -> None:
    """Where the verifier did not accept a run whose report says passed, a fraction does not either."""
    doubted = verdict(4, rewards={"reward": 0.0}, total=0.0, cause=Cause.AGENT, flags=(flag,))
    assert value({"kind": "tests", "mode": "fraction"}, seen(judged=doubted)) == 0.0
    assert value({"kind": "no_regression", "tests": TESTS[:1]}, seen(judged=doubted)) == 0.0


def test_harbors_own_reward_is_kept_from_zero_to_one() -> None:
    """A reward file may say two, or minus one; a component cannot."""
    plain = task()
    plain = plain.model_copy(update={"verifier": plain.verifier.model_copy(update={"expected_tests": ()})})
    for said, kept in ((2.0, 1.0), (-1.0, 0.0), (0.5, 0.5)):
        judged = verdict(0, rewards={"reward": said}, total=said, tests={})
        assert value({"kind": "tests", "mode": "fraction"}, seen(judged=judged, of=plain)) == kept


def test_no_regression_is_about_what_passed_before() -> None:
    """The tests that pass untouched, or those that the rule names; unknown where neither is known."""
    rule = {"kind": "no_regression"}
    before = Observed(start_tests=TESTS[:2])
    assert value(rule, seen(judged=verdict(2), observed=before)) == 1.0
    assert value(rule, seen(judged=verdict(1), observed=before)) == 0.0
    assert value({**rule, "mode": "fraction"}, seen(judged=verdict(1), observed=before)) == 0.5
    assert value({**rule, "tests": TESTS[:1]}, seen(judged=verdict(1))) == 1.0
    assert value(rule, seen(judged=verdict(0), observed=Observed(start_tests=()))) == 1.0
    assert value(rule, seen()) is None


def test_a_patch_is_measured_against_the_reference() -> None:
    """Full up to slack times its size, halved when doubled from there, never below the floor; tests do not count."""

    def of(size: int, **more: Any) -> float | None:
        observed = Observed(patch=patch(add=size, test_add=500), reference=patch(add=10))
        return value({**SIZE, **more}, seen(observed=observed))

    assert [of(1), of(10), of(20)] == [1.0, 1.0, 1.0]
    assert of(40) == pytest.approx(0.1 + 0.9 / 2)
    assert of(10_000_000) == pytest.approx(0.1, abs=1e-4)
    assert of(40, slack=4) == 1.0
    assert of(40, lines=20) == 1.0
    assert of(40, floor=0) == 0.5


def test_changing_nothing_is_no_small_patch() -> None:
    """The floor, not the full score: nothing was done."""
    nothing = Observed(patch=Patch(), reference=patch(add=10))
    assert value(SIZE, seen(observed=nothing)) == 0.1
    assert value(SCOPE, seen(observed=nothing)) == 0.0


def test_scope_is_the_share_of_files_that_belong_to_the_task() -> None:
    """The reference's files, or patterns of the rule; the agent's own tests are no part of it."""
    observed = Observed(patch=patch(add=3, other=1, test_add=9), reference=patch(add=2))
    assert value(SCOPE, seen(observed=observed)) == 0.5
    assert value({**SCOPE, "floor": 0.5}, seen(observed=observed)) == 0.75
    assert value({**SCOPE, "files": ["*.py"]}, seen(observed=observed)) == 1.0
    assert "/workspace/other.py" in component(SCOPE, seen(observed=observed)).why


def test_without_a_reference_its_comparisons_are_unknown_and_say_why() -> None:
    """No number stands in for what nobody measured."""
    observed = Observed(patch=patch(add=3), missing={"reference": "the task has no reference solution"})
    for rule in (SIZE, SCOPE):
        part = component(rule, seen(observed=observed))
        assert part.value is None
        assert "no reference solution" in part.why
    assert value({**SIZE, "lines": 3}, seen(observed=observed)) == 1.0


def test_weakening_tests_closes_the_gate() -> None:
    """A changed or removed test of the start, or a file that steers tests, makes the total 0; a new test does not."""
    both = rules({"kind": "tests"}, {"kind": "protected"})
    honest = seen(observed=Observed(patch=patch(add=1), weakened=()), judged=verdict(flags=("weakens_tests",)))
    guilty = seen(observed=Observed(patch=patch(add=1), weakened=("/workspace/tests/test_add.py",)))
    assert graded(both, honest, {}).total == 1.0
    assert graded(both, guilty, {}).total == 0.0
    assert value({"kind": "protected"}, seen(judged=verdict(flags=("weakens_tests",)))) == 0.0  # nothing finer is known


def checked(before: str, after: str, *, codes: tuple[int, int] = (0, 0), seconds: tuple[float, float] = (1, 1),
            late: tuple[bool, bool] = (False, False)) -> Evidence:
    ran = Checked(command="ruff check .", timeout_s=60.0, repeats=1,
                  before=CheckRun(exit_code=codes[0], seconds=seconds[0], output=before, timed_out=late[0]),
                  after=CheckRun(exit_code=codes[1], seconds=seconds[1], output=after, timed_out=late[1]))
    return seen(observed=Observed(checks=(ran,)))


def test_a_check_by_exit_status_is_the_end_trees() -> None:
    """A build that was broken and is mended counts; one that is broken in the end does not."""
    rule = {**LINT, "measure": "exit"}
    assert value(rule, checked("", "", codes=(1, 0))) == 1.0
    assert value(rule, checked("", "", codes=(0, 1))) == 0.0
    assert value(rule, checked("", "", late=(False, True))) == 0.0


def test_a_number_is_compared_with_the_start_trees() -> None:
    """No worse is full; worse falls with the ratio; counts from zero up count each."""
    assert value(LINT, checked("Found 4 errors", "Found 4 errors", codes=(1, 1))) == 1.0
    assert value(LINT, checked("4", "0")) == 1.0
    assert value(LINT, checked("4", "8")) == pytest.approx(1.1 / 2)
    assert value(LINT, checked("0", "1")) == pytest.approx(1.1 / 2)
    assert value({**LINT, "better": "higher"}, checked("80", "40")) == pytest.approx(1.1 / 2)
    assert value({**LINT, "pattern": r"(\d+) errors"}, checked("3 errors 99", "3 errors 100")) == 1.0


def test_a_target_asks_for_an_improvement() -> None:
    """From 0 where nothing improved to 1 at the target, in between by the way gone."""
    faster = {**LINT, "measure": "seconds", "target": 0.5}
    assert [value(faster, checked("", "", seconds=(4.0, s))) for s in (4.0, 3.0, 2.0, 1.0, 9.0)] == [0, 0.5, 1, 1, 0]
    higher = {**LINT, "better": "higher", "target": 2}
    assert [value(higher, checked("10", text)) for text in ("10", "20", "5", "nothing")] == [0.0, 1.0, 0.0, 0.0]


def test_what_the_start_tree_cannot_run_or_tell_is_unknown() -> None:
    """Only what has nothing to do with the agent: on the end tree the same is a 0."""
    assert value(LINT, seen()) is None
    for rule in (LINT, {**LINT, "measure": "exit"}):
        assert value(rule, checked("", "1", codes=(127, 0))) is None
        assert value(rule, checked("1", "1", codes=(0, 127))) in (0.0, 1.0)
    assert value(LINT, checked("nothing", "3")) is None
    assert value(LINT, checked("3", "nothing")) == 0.0
    assert value({**LINT, "measure": "seconds"}, checked("", "", codes=(1, 0))) is None
    assert value({**LINT, "measure": "seconds"}, checked("", "", codes=(0, 1))) == 0.0


def test_a_total_is_the_weighted_mean_times_the_gates() -> None:
    """Weights need not sum to one; a weight of 0 reports without moving anything."""
    evidence = seen(judged=verdict(3), observed=Observed(patch=patch(add=10), reference=patch(add=10), weakened=()))
    half = {"kind": "tests", "mode": "fraction", "weight": 3}
    grade = graded(rules(half, {**SIZE, "weight": 1}, {"kind": "claim_matches", "weight": 0}), evidence, {})
    assert grade.total == pytest.approx((3 * 0.75 + 1) / 4)
    assert grade.components[2].value == 0.5
    gated = graded(rules(half, {"kind": "tests", "name": "all", "gate": True}), evidence, {})
    assert gated.total == 0.0


def test_gates_alone_multiply_the_verifiers_own_reward() -> None:
    """Without any weight there is no mean, and the verifier's reward stands for it."""
    assert graded(rules({"kind": "protected"}), seen(), {}).total == 1.0
    assert graded(rules({"kind": "protected"}), seen(judged=verdict(2)), {}).total == 0.0


def test_a_missing_component_leaves_no_total_unless_it_weighs_nothing() -> None:
    """The verdict keeps what is known, passes as before, and says what is not."""
    grade = graded(rules({"kind": "tests"}, SIZE), seen(), {})
    applied = grade.applied()
    assert (grade.total, applied.total, applied.passed) == (None, None, True)
    assert applied.rewards == {"reward": 1.0, "tests": 1.0, "patch_size": None}
    assert "patch_size" in applied.detail
    assert graded(rules({"kind": "tests"}, {**SIZE, "weight": 0}), seen(), {}).total == 1.0


def test_tampering_and_an_exceeded_limit_have_total_zero_by_any_rules() -> None:
    """Whatever else was well done; and what is unknown stays so."""
    easy = rules({"kind": "unsafe_actions"}, SIZE)
    for cause, flag in ((Cause.TAMPER, "tamper:canary_passed"), (Cause.BUDGET, "over:disk_mb")):
        judged = verdict(0, cause=cause, flags=(flag,))
        grade = graded(easy, seen(judged=judged), {})
        assert grade.total == 0.0
        assert grade.components[1].value is None
    assert graded(easy, seen(judged=verdict(0, cause=Cause.TAMPER)), {}).components[0].value == 0.0


def test_a_plug_in_rule_is_one_function() -> None:
    """It gets the evidence and its options; what it cannot tell, and what it returns wrongly, is unknown."""

    def short(evidence: Evidence, options: Any) -> Any:
        return options.get("give", float(len(evidence.trajectory.steps) < 3))

    def broken(evidence: Evidence, options: Any) -> float | None:
        raise KeyError("nothing")

    plugins = {"short": short, "broken": broken}
    assert value({"kind": "plugin", "use": "short"}, seen(), plugins) == 1.0
    for given in (None, float("nan"), float("inf"), -0.1, 1.1, "1"):
        assert value({"kind": "plugin", "use": "short", "options": {"give": given}}, seen(), plugins) is None
    assert "KeyError" in component({"kind": "plugin", "use": "broken"}, seen(), plugins).why
    assert value({"kind": "plugin", "use": "absent"}, seen(), plugins) is None
