"""Faults upon the tiny training: what breaks is drawn by dice, whatever is made of it, and as often as it is told."""

from __future__ import annotations

import random

import pytest
from tiny.faults import Faults, Follows, Treatment

from woodshed.model import Assurance, Attempt, Invalid, Outcome, StopReason, Usage, Valid


def attempts(count: int) -> list[Attempt]:
    """Finished ones: a third passed, and of one to five turns."""
    dice = random.Random(7)
    made = []
    for number in range(count):
        passed = number % 3 == 0
        verdict = Valid(rewards={"reward": float(passed)}, total=float(passed), assurance=Assurance.CANARY)
        outcome = Outcome(verdict=verdict, stop=StopReason.FINISHED, usage=Usage(turns=dice.randint(1, 5)))
        made.append(Attempt(id=f"a{number}", run="r", task=f"t{number // 8}", index=number % 8, agent="tiny",
                            seed=number, outcome=outcome))
    return made


@pytest.mark.parametrize("follows", list(Follows))
def test_as_many_break_as_was_told_and_those_that_it_follows(follows: Follows) -> None:
    """Three in ten break; among those that passed three times as many, or more the longer they are, or neither."""
    given = attempts(6000)
    struck = Faults(follows).struck(given, 1)
    broken = [isinstance(one.outcome and one.outcome.verdict, Invalid) for one in struck]
    assert [one for one, broke in zip(struck, broken, strict=True) if not broke] == [
        one for one, broke in zip(given, broken, strict=True) if not broke]

    def rate(of: list[bool]) -> float:
        return sum(broke for broke, one in zip(broken, of, strict=True) if one) / sum(of)

    passed = [number % 3 == 0 for number in range(6000)]
    long = [one.outcome is not None and one.outcome.usage.turns >= 4 for one in given]
    assert rate([True] * 6000) == pytest.approx(0.3, abs=0.03)
    unlike = {Follows.SUCCESS: passed, Follows.LENGTH: long}
    for name, of in (("success", passed), ("length", long)):
        more = rate(of) / rate([not one for one in of])
        assert more > 1.5 if unlike.get(follows) is of else more == pytest.approx(1, abs=0.2), name


def test_the_same_break_whatever_is_made_of_it() -> None:
    """What is invalid to the one is a zero, by the agent's fault, to the other; another seed breaks others."""
    given = attempts(400)
    invalid = Faults(Follows.NOTHING, Treatment.INVALID).struck(given, 3)
    zeros = Faults(Follows.NOTHING, Treatment.ZERO).struck(given, 3)
    for before, one, other in zip(given, invalid, zeros, strict=True):
        assert before.outcome is not None
        assert one.outcome is not None
        assert other.outcome is not None
        if isinstance(one.outcome.verdict, Invalid):
            assert one.outcome.broke is not None
            assert isinstance(other.outcome.verdict, Valid)
            assert other.outcome.verdict.total == 0.0
        else:
            assert before == one == other
    assert Faults().struck(given, 4) != Faults().struck(given, 3)
