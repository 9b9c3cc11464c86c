"""Selection bias: found where faults follow length or task, silent where they follow nothing."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exportkit import filled, valid
from woodshed.cli import groups as groups_command
from woodshed.errors import Cause
from woodshed.measure.bias import ALPHA, Bias, End, Tried, bias, shifted
from woodshed.model import Attempt, EventKind, Invalid, Outcome, StopReason, Usage
from woodshed.model.retry import Broken
from woodshed.services import report, selection
from woodshed.services.exporting import Order, export
from woodshed.services.home import Home, opened
from woodshed.services.metrics import Metrics, Requests
from woodshed.store.eventlog import EventLog

Strikes = Callable[[random.Random, int, int], tuple[End, int | None]]
TASKS = 30


def uniform(dice: random.Random, length: int, task: int) -> tuple[End, int | None]:
    if dice.random() >= 0.3:
        return End.VALID, length
    return dice.choice([(End.BEFORE, None), (End.DURING, 0), (End.AFTER, length)])


def long_ones(dice: random.Random, length: int, task: int) -> tuple[End, int | None]:
    return (End.DURING, dice.randrange(1, length)) if length >= 9 and dice.random() < 0.6 else (End.VALID, length)


def long_ones_later(dice: random.Random, length: int, task: int) -> tuple[End, int | None]:
    return (End.AFTER if length >= 9 and dice.random() < 0.6 else End.VALID), length


def hazard(dice: random.Random, length: int, task: int) -> tuple[End, int | None]:
    broke = next((turn for turn in range(length) if dice.random() < 0.05), None)
    return (End.VALID, length) if broke is None else (End.DURING, broke)


def some_tasks(dice: random.Random, length: int, task: int) -> tuple[End, int | None]:
    return (End.BEFORE, None) if dice.random() < (0.6 if task < TASKS // 3 else 0.15) else (End.VALID, length)


def tries(strikes: Strikes, seed: int, attempts: int, retries: int = 1) -> list[Tried]:
    """Attempts whose long executions earn less, each tried again as often as is allowed."""
    dice, made = random.Random(seed), []
    for number in range(attempts):
        for _ in range(1 + retries):
            length = min(20, 1 + int(dice.expovariate(1 / 7)))
            reward = float(dice.random() < max(0.1, 0.8 - 0.04 * length))
            end, reached = strikes(dice, length, number % TASKS)
            made.append(Tried(f"a{number}", f"t{number % TASKS}", end, reached, reward if end is End.VALID else None))
            if end is End.VALID:
                break
    return made


def found(strikes: Strikes, seed: int, attempts: int, retries: int = 1) -> Bias:
    made = bias(tries(strikes, seed, attempts, retries), seed=seed)
    assert made is not None
    return made


def false_alarms(times: int) -> int:
    return sum(found(uniform, seed, 200 + 200 * (seed % 2), seed % 3).warns for seed in range(times))


def test_faults_that_follow_nothing_raise_no_warning() -> None:
    """Of 40 runs of which 30 % broke by chance alone, at most one is warned of."""
    assert false_alarms(40) <= 1


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_promised() -> None:
    """Of 1,500 such runs no more are warned of than the level allows, up to three deviations of chance."""
    assert false_alarms(1500) <= 1500 * ALPHA + 3 * (1500 * ALPHA) ** 0.5


@pytest.mark.parametrize(("strikes", "kind"), [
    (some_tasks, "task"), (long_ones, "length"), (long_ones_later, "length"), (hazard, "length")],
    ids=["tasks", "longest-third", "longest-third-later", "hazard-per-turn"])
def test_faults_that_follow_something_are_found(strikes: Strikes, kind: str) -> None:
    """Each kind of dependence is found in each of two runs of 400 attempts."""
    assert all(getattr(found(strikes, seed, 400), kind).warns for seed in range(2))


@pytest.mark.slow
@pytest.mark.parametrize(("strikes", "kind", "least"), [
    (some_tasks, "task", 0.75), (long_ones, "length", 0.95), (long_ones_later, "length", 0.95),
    (hazard, "length", 0.95)], ids=["tasks", "longest-third", "longest-third-later", "hazard-per-turn"])
def test_two_hundred_attempts_suffice_mostly(strikes: Strikes, kind: str, least: float) -> None:
    """Of 60 runs of 200 attempts without retries, at least the promised share is warned of."""
    made = [getattr(found(strikes, seed, 200, 0), kind).warns for seed in range(60)]
    assert sum(made) / 60 >= least


def test_weights_are_those_of_kaplan_and_meier() -> None:
    """Of four that acted one broke after one turn and may have gone on: the others of more turns stand for it."""
    cells = Counter({(1.0, End.VALID, 1.0): 1, (1.0, End.DURING, None): 1, (2.0, End.VALID, 0.0): 1,
                     (3.0, End.VALID, 0.0): 1})
    made = shifted(cells)
    assert made is not None
    assert made.raw == pytest.approx(2.0)
    assert made.whole == pytest.approx((1 + 1.5 * 2 + 1.5 * 3) / 4)
    assert made.raw_reward == pytest.approx(1 / 3)
    assert made.whole_reward == pytest.approx(1 / 4)
    assert made.beyond == pytest.approx(0.0)


def test_what_no_valid_one_reached_lies_at_the_furthest_seen() -> None:
    """The share of those that broke beyond all others is told, and counts as what was seen of it at least."""
    made = shifted(Counter({(1.0, End.VALID, None): 1, (5.0, End.DURING, None): 1}))
    assert made is not None
    assert made.beyond == pytest.approx(0.5)
    assert made.whole == pytest.approx(3.0)
    assert made.reward is None


def test_the_same_executions_give_the_same_findings() -> None:
    """The draws follow the seed, whatever the order of attempts."""
    made = tries(hazard, 1, 200)
    again = sorted(made, key=lambda one: one.attempt, reverse=True)
    first, second = bias(made, seed=3), bias(again, seed=3)
    assert first is not None
    assert second is not None
    assert (first.task, first.length and first.length.effect) == (second.task, second.length and second.length.effect)


def test_little_that_broke_tells_nothing() -> None:
    """Of fewer than five broken executions, or twenty in all, there is no finding."""
    whole = [Tried(f"a{number}", "t", End.VALID, 3.0, 1.0) for number in range(50)]
    assert bias([*whole, *(Tried(f"b{number}", "t", End.AFTER, 3.0) for number in range(4))]) is None
    assert bias([Tried(f"b{number}", "t", End.AFTER, 3.0) for number in range(19)]) is None


# -- where a person looks ----------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with opened(tmp_path / "home") as made:
        yield made


def settle(home: Home, attempt: Attempt, turns: int, *, breaks_at: int | None) -> None:
    """One execution, broken while acting and tried again, or lost with its worker, or valid in the end."""
    usage = Usage(turns=turns)
    if breaks_at is not None:
        number = home.store.begin_execution(attempt.id, "test")
        assert number is not None
        log = EventLog(home.store, attempt.id, number)
        if attempt.index % 2:
            verdict = Invalid(cause=Cause.MODEL_API, detail="500", retryable=True)
            broke = Broken(cause=verdict.cause, stage="act", retryable=True)
            log.set_aside(Outcome(verdict=verdict, stop=StopReason.ERROR, usage=Usage(turns=breaks_at), broke=broke))
        else:
            for _ in range(breaks_at):
                log.emit(EventKind.MODEL_RESULT, {"content": "", "parent": None})
            log.flush()
    number = home.store.begin_execution(attempt.id, "test")
    assert number is not None
    EventLog(home.store, attempt.id, number).finish(
        Outcome(verdict=valid(1.0), stop=StopReason.FINISHED, usage=usage))


def test_a_run_says_that_its_long_attempts_broke(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What broke and was tried again, with a word or without, counts: summary, data card, metrics and groups

    tell that the long ones are missing, and what to do.
    """
    run = filled(home, [(f"t{number % 4}", None, None) for number in range(100)])
    for number, attempt in enumerate(home.store.attempts(run.id)):
        settle(home, attempt, 1 + number % 3, breaks_at=6 + number % 3 if number % 5 < 2 else None)
    (told,) = report.summary(home, run)["selection"]
    assert told["broken"] == {"during": 40}
    assert told["length"]["warns"]
    assert told["length"]["whole"] > told["length"]["raw"]
    assert "long executions break more" in told["warnings"][0]
    assert "mostly during acting" in told["warnings"][-1]
    card = export(home, [run], Order("grpo", tmp_path / "out")).card
    assert card["selection_warnings"] == told["warnings"]
    assert "| warning | selection bias" in (tmp_path / "out" / "README.md").read_text()
    monkeypatch.setattr(type(home.store.rollouts), "states", lambda *_: [(run.id, run.state, run.created_at)])
    assert "woodshed_selection_bias 1\n" in Metrics(home, Requests()).page()
    monkeypatch.setenv("WOODSHED_HOME", str(home.path))
    groups_command.groups("last", json=True)
    assert json.loads(capsys.readouterr().out)["selection"] == [told]
    groups_command.groups("last")
    groups_command.groups("last", follow=True)
    both = capsys.readouterr()
    assert all("selection bias, loop: long executions break more" in " ".join(text.split()) for text in both)


def test_a_run_without_faults_is_not_looked_at(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where everything was valid at the first try, nothing is read or reckoned, and nothing is told."""
    run = filled(home, [("t", valid(1.0), None)] * 30)
    attempts = home.store.attempts(run.id)
    monkeypatch.setattr(selection, "bias", lambda *_, **__: pytest.fail("it was reckoned"))
    monkeypatch.setattr(type(home.store), "executions", lambda *_: pytest.fail("it was read"))
    assert selection.selected(home, run, attempts) == []
    assert "selection" not in report.summary(home, run)
