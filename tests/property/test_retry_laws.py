"""Retry rules: bounded by rule and by who pays, never because of the agent, and a breaker that stops a hopeless run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.errors import INVALID_CAUSES, Cause, UsageError
from woodshed.model import Assurance, Invalid, Valid
from woodshed.model.retry import STAGES, Breaker, BreakerRule, Broken, Budget, RetryRule, RetryRules, budget_of

OURS = sorted(INVALID_CAUSES - {Cause.CANCELLED})
CAUSES, PLACES = st.sampled_from(OURS), st.sampled_from([*STAGES, None])
FAULTS = st.builds(Broken, cause=CAUSES, stage=PLACES, retryable=st.just(True), asked_s=st.floats(0, 500))
RULES = st.builds(
    RetryRules,
    retry=st.lists(
        st.builds(
            RetryRule, cause=st.one_of(st.none(), CAUSES), stage=PLACES, max=st.integers(0, 4),
            backoff_s=st.floats(0, 10), longest_s=st.floats(0, 100), jitter=st.floats(0, 1),
        ), max_size=4,
    ).map(tuple),
    infrastructure=st.integers(0, 4), model=st.integers(0, 4),
)


@given(RULES, st.lists(FAULTS, min_size=1, max_size=12), st.floats(0, 0.999))
def test_no_attempt_is_retried_beyond_its_budgets(rules: RetryRules, faults: list[Broken], chance: float) -> None:
    """However faults follow one another, retries stay within each rule, within each budget, and wait as asked."""
    past: list[Broken] = []
    for fault in faults:
        past.append(fault)
        wait = rules.wait_s(past, chance)
        if wait is None:
            break
        assert wait >= fault.asked_s
    granted = past if wait is not None else past[:-1]
    for budget, bound in ((Budget.INFRASTRUCTURE, rules.infrastructure), (Budget.MODEL, rules.model)):
        assert sum(budget_of(fault.cause) is budget for fault in granted) <= bound
    assert len(granted) <= sum(rule.max for rule in rules.retry)


@given(RULES, st.lists(FAULTS, max_size=3), CAUSES, PLACES)
def test_what_no_retry_mends_is_final(rules: RetryRules, past: list[Broken], cause: Cause, stage: str | None) -> None:
    """A fault that says it is not retryable, or a cancellation, is never tried again."""
    assert rules.wait_s([*past, Broken(cause=cause, stage=stage)], 0.5) is None
    assert rules.wait_s([*past, Broken(cause=Cause.CANCELLED, retryable=True)], 0.5) is None


@given(st.integers(1, 80), st.floats(0, 0.999), st.floats(0, 10), st.floats(0, 100), st.floats(0, 1))
def test_waits_grow_and_are_bounded(retry: int, chance: float, first: float, longest: float, jitter: float) -> None:
    """A wait never exceeds its bound, never falls under the part that is not left to chance, and never shrinks."""
    rule = RetryRule(backoff_s=first, longest_s=longest, jitter=jitter)
    assert rule.wait_s(retry, 0.0) * (1 - jitter) - 1e-9 <= rule.wait_s(retry, chance) <= longest + 1e-9
    assert rule.wait_s(retry + 1, 0.0) >= rule.wait_s(retry, 0.0)
    assert rule.wait_s(retry, chance, asked_s=7200.0) == 7200.0


def test_a_flaky_model_does_not_use_up_the_retries_of_a_dying_machine() -> None:
    """Budgets are apart: after the model's is spent a fault of the environment is still tried again."""
    rules = RetryRules(retry=(RetryRule(max=9),), infrastructure=1, model=2)
    model = Broken(cause=Cause.MODEL_API, retryable=True)
    past = [model, model, model]
    assert rules.wait_s(past[:2], 0) is not None
    assert rules.wait_s(past, 0) is None
    assert rules.wait_s([*past[:2], Broken(cause=Cause.ENVIRONMENT, retryable=True)], 0) is not None


@pytest.mark.parametrize(("table", "field", "said"), [
    ({"retry": [{"cause": "agent"}]}, "retry.0.cause", "nothing is retried because of 'agent'"),
    ({"retry": [{"cause": "cancelled"}]}, "retry.0.cause", "nothing is retried because of 'cancelled'"),
    ({"retry": [{"stage": "verfy"}]}, "retry.0.stage", "no stage 'verfy'"),
    ({"retry": [{"max": -1}]}, "retry.0.max", "greater than or equal to 0"),
    ({"retry": [{"backof_s": 1}]}, "retry.0.backof_s", "Did you mean 'backoff_s'?"),
])
def test_a_bad_rule_is_named(table: dict[str, object], field: str, said: str) -> None:
    """What a rule may not say is refused with the file, the field and the remedy."""
    with pytest.raises(UsageError) as refused:
        RetryRules.parse(table, file="retry.toml")
    assert f"retry.toml: {field}" in str(refused.value)
    assert said in str(refused.value)


VALID = Valid(rewards={}, total=0.0, assurance=Assurance.CANARY)
BROKEN = Invalid(cause=Cause.ENVIRONMENT, detail="EnvironmentFault: the disk is full", retryable=True)
STOPPED = Invalid(cause=Cause.CANCELLED, detail="the run was interrupted")


@given(st.integers(1, 12), st.floats(0, 1), st.lists(st.sampled_from([VALID, BROKEN, STOPPED]), max_size=40))
def test_the_breaker_speaks_when_the_last_ones_were_mostly_broken(
    over: int, least: float, ended: list[Valid | Invalid]
) -> None:
    """It speaks exactly where fewer than the wanted share of the last N counted executions were valid, and says why."""
    breaker, counted = Breaker(BreakerRule(valid_rate=least, over=over)), list[bool]()
    for verdict in ended:
        said = breaker.add(verdict)
        if verdict is STOPPED:
            assert said is None
            continue
        counted.append(verdict is VALID)
        last = counted[-over:]
        assert (said is not None) == (len(last) == over and sum(last) < least * over)
        assert said is None or "the disk is full" in said
