"""The closing table: counts, causes, and None where there is nothing to say."""

from __future__ import annotations

import json

import pytest

from woodshed.errors import Cause
from woodshed.measure import Figures, by_agent, summary
from woodshed.model import Assurance, Attempt, Invalid, Outcome, StopReason, Usage, Valid


def valid(total: float, *, cause: Cause | None = None, turns: int = 0, tokens: int = 0, seconds: float = 0) -> Outcome:
    return Outcome(
        verdict=Valid(rewards={"total": total}, total=total, cause=cause, assurance=Assurance.CANARY),
        stop=StopReason.FINISHED,
        usage=Usage(turns=turns, prompt_tokens=tokens, completion_tokens=tokens),
        stages_s={"act": seconds, "verify": seconds},
    )


def invalid(cause: Cause) -> Outcome:
    return Outcome(
        verdict=Invalid(cause=cause, detail="it broke"), stop=StopReason.ERROR,
        usage=Usage(turns=99, prompt_tokens=1000), stages_s={"act": 500.0},
    )


def attempts(task: str, *outcomes: Outcome | None, agent: str = "loop") -> list[Attempt]:
    return [
        Attempt(id=f"r.{agent}.{task}.{n}", run="r", task=task, agent=agent, index=n, seed=n, outcome=outcome)
        for n, outcome in enumerate(outcomes)
    ]


def test_a_total_that_is_unknown_enters_no_mean() -> None:
    """It is counted beside the mean; where no total is known there is no mean at all."""
    unknown = Outcome(verdict=Valid(rewards={"reward": 1.0}, total=None, assurance=Assurance.CANARY),
                      stop=StopReason.FINISHED)
    row = only(summary(attempts("a", valid(0.5), unknown)))
    assert (row.mean_total, row.unknown_totals, row.passed) == (0.5, 1, 1)
    assert only(summary(attempts("a", unknown))).mean_total is None


def only(rows: list[Figures]) -> Figures:
    (row,) = rows
    return row


def test_invalid_attempts_stand_apart_and_move_no_pass_figure() -> None:
    """Two broken attempts change the valid rate and the causes, and neither pass@1 nor any mean."""
    good = valid(1.0, turns=3, tokens=10, seconds=2), valid(0.0, turns=5, tokens=20, seconds=4)
    clean = only(summary(attempts("a", *good)))
    mixed = only(summary(attempts("a", *good, invalid(Cause.ENVIRONMENT), invalid(Cause.MODEL_API))))
    assert mixed.valid_rate == 0.5
    assert mixed.invalid == {Cause.ENVIRONMENT: 1, Cause.MODEL_API: 1}
    assert (mixed.valid, mixed.passed, mixed.failed) == (2, 1, 1)
    for name in ("pass_at_1", "pass_at_1_low", "pass_at_1_high", "mean_turns", "mean_tokens", "mean_seconds"):
        assert getattr(mixed, name) == getattr(clean, name)
    assert (clean.mean_turns, clean.mean_tokens, clean.mean_seconds) == (4, 30, 6)
    assert (clean.tokens, mixed.tokens) == (60, 2060)


@pytest.mark.parametrize("outcomes", [(None, None), (invalid(Cause.VERIFIER), None)])
def test_without_a_valid_attempt_there_is_no_pass_figure(outcomes: tuple[Outcome | None, ...]) -> None:
    """Nothing valid gives None for every pass figure and mean, never 0 and never NaN."""
    row = only(summary(attempts("a", *outcomes)))
    assert (row.pass_at_1, row.pass_at_1_low, row.pass_at_1_high, row.pass_at_k) == (None,) * 4
    assert (row.mean_turns, row.mean_tokens, row.mean_seconds) == (None,) * 3
    assert row.valid_rate == (None if row.done == 0 else 0.0)
    assert "NaN" not in json.dumps(row.to_json())


def test_tasks_weigh_the_same_however_often_each_was_valid() -> None:
    """A task that lost three of four attempts to faults counts as much as one that lost none."""
    lost = invalid(Cause.ENVIRONMENT)
    rows = attempts("a", valid(1.0), lost, lost, lost) + attempts("b", *[valid(0.0)] * 4)
    row = only(summary(rows))
    assert row.pass_at_1 == 0.5
    assert (row.k, row.k_tasks, row.pass_at_k) == (4, 1, 0.0)


def test_pass_at_k_is_the_mean_of_the_tasks_estimates() -> None:
    """Two tasks with 1 and 0 of 2 passes: pass@1 is 1/4 and pass@2 is 1/2."""
    row = only(summary(attempts("a", valid(1.0), valid(0.0)) + attempts("b", valid(0.0), valid(0.0))))
    assert (row.pass_at_1, row.pass_at_k, row.k, row.tasks) == (0.25, 0.5, 2, 2)


def test_cheats_are_valid_and_failed() -> None:
    """Tampering lowers the pass rate, not the valid rate, and is counted by name."""
    row = only(summary(attempts("a", valid(0.0, cause=Cause.TAMPER), valid(1.0))))
    assert (row.valid_rate, row.failed, row.tampered, row.pass_at_1) == (1.0, 1, 1, 0.5)


def test_partial_totals_are_not_passes() -> None:
    """Only a total of 1 passes; half the reward is a failed attempt."""
    assert only(summary(attempts("a", valid(0.5)))).passed == 0


def test_rows_come_by_agent_and_group_in_order_of_appearance() -> None:
    """Each agent and group has its own row; a task that is in no group falls under the empty name."""
    rows = attempts("a", valid(1.0)) + attempts("b", valid(1.0)) + attempts("a", valid(0.0), agent="nop")
    found = [(row.agent, row.group, row.pass_at_1) for row in summary(rows, {"a": "first"})]
    assert found == [("loop", "first", 1.0), ("loop", "", 1.0), ("nop", "first", 0.0)]
    assert [(row.agent, row.tasks) for row in by_agent(rows)] == [("loop", 2), ("nop", 1)]


def test_no_attempts_give_no_rows() -> None:
    """An empty run has an empty table."""
    assert summary([]) == []
