"""Agents beside each other: what counts, what is left out, what is decided, and at which rate of error."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import NormalDist

import pytest

from woodshed.measure.compare import Contest, Pair, Try, contest, grid, interval, needed, sign_flip, spread

Chances = Callable[[random.Random], tuple[float, float]]


def tries(agent: str, *rows: tuple[str, str], **values: float) -> list[Try]:
    """``rows`` are (task, outcomes): ``+`` passed, ``-`` failed, ``!`` invalid, by index."""
    return [Try(agent, task, index, None if mark == "!" else mark == "+", "environment" if mark == "!" else "", values)
            for task, marks in rows for index, mark in enumerate(marks)]


def only(found: Contest) -> Pair:
    (pair,) = found.pairs
    return pair


def test_invalid_attempts_are_dropped_by_pairs_and_shown() -> None:
    """An attempt that broke takes its partner along; neither becomes a zero, and both agents' valid rates stand."""
    found = contest([*tries("a", ("t1", "++"), ("t2", "-!")), *tries("b", ("t1", "+-"), ("t2", "++"))])
    pair = only(found)
    assert pair.tries == 3
    assert pair.difference == pytest.approx((0.5 - 1.0) / 2)
    [drop] = pair.dropped
    assert (drop.task, drop.index, drop.why) == ("t2", 1, "a: environment")
    a, b = found.sides
    assert (a.valid, a.attempts, a.invalid, a.pass_rate) == (3, 4, {"environment": 1}, 0.5)
    assert a.valid_low < 0.75 < a.valid_high
    assert (b.valid_rate, b.pass_rate) == (1.0, 0.75)


def test_a_task_without_a_valid_pair_is_no_task_of_the_pair() -> None:
    """It is not a tie, and its attempts are shown as dropped; a task that only one agent has is not compared."""
    pair = only(contest([*tries("a", ("t1", "+"), ("t2", "!"), ("t3", "+")), *tries("b", ("t1", "-"), ("t2", "+"))]))
    assert (pair.tasks, pair.wins, pair.losses, pair.ties) == (1, 1, 0, 0)
    assert [drop.task for drop in pair.dropped] == ["t2"]


def test_nothing_in_common_decides_nothing() -> None:
    """Without a valid pair every figure is unknown or 1, and nothing raises."""
    pair = only(contest([*tries("a", ("t1", "!")), *tries("b", ("t2", "+"))]))
    assert (pair.tasks, pair.difference, pair.p, pair.decided, pair.more_attempts) == (0, None, 1.0, "noise", None)


def test_a_clear_difference_is_decided_and_a_small_one_says_what_it_takes() -> None:
    """Ten tasks won of ten are decided; one more pass in forty is noise, with the attempts that would decide it."""
    clear = only(contest([*tries("a", *((f"t{n}", "++++") for n in range(10))),
                          *tries("b", *((f"t{n}", "---+") for n in range(10)))]))
    assert (clear.decided, clear.wins, clear.more_attempts) == ("a", 10, None)
    assert clear.p == pytest.approx(2 / 2**10)
    small = only(contest([*tries("a", *((f"t{n}", "+-+-") for n in range(9)), ("t9", "+++-")),
                          *tries("b", *((f"t{n}", "+--+") for n in range(10)))]))
    assert small.decided == "noise"
    assert small.more_attempts
    assert small.more_in_all == small.more_attempts * 20
    assert small.more_tasks


def test_with_one_attempt_each_only_tasks_are_asked_for() -> None:
    """How much attempts vary is unknown then, and no number of them is promised."""
    pair = only(contest([*tries("a", *((f"t{n}", "+-"[n % 2]) for n in range(6))),
                         *tries("b", *((f"t{n}", "+--"[n % 3]) for n in range(6)))]))
    assert (pair.decided, pair.more_attempts) == ("noise", None)
    assert pair.more_tasks


def test_three_agents_are_adjusted_together() -> None:
    """The adjusted p of the best pair is three times its own."""
    rows = [(f"t{n}", "+++") for n in range(9)]
    found = contest([*tries("a", *rows), *tries("b", *((task, "---") for task, _ in rows)),
                     *tries("c", *((task, "-+-") for task, _ in rows))])
    assert [(pair.a, pair.b) for pair in found.pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert found.pairs[0].p_adjusted == pytest.approx(3 * found.pairs[0].p)


def test_other_figures_are_compared_over_the_tasks_that_have_them() -> None:
    """A figure that is unknown for a task leaves the task out of that figure alone."""
    a = [Try("a", "t1", 0, True, values={"x": 1.0}), Try("a", "t2", 0, True, values={"x": None})]
    b = [Try("b", "t1", 0, False, values={"x": 0.5}), Try("b", "t2", 0, True, values={"x": 0.1})]
    score = only(contest([*a, *b])).values["x"]
    assert (score.tasks, score.a, score.b, score.difference) == (1, 1.0, 0.5, 0.5)


def test_at_k_and_of_k_stand_side_by_side() -> None:
    """One of two always passes, both never: pass@2 is 1 and pass^2 is 0."""
    [side, _] = contest([*tries("a", ("t", "+-"), ("u", "-+")), *tries("b", ("t", "--"), ("u", "++"))]).sides
    assert (side.at_k, side.of_k) == ({1: 0.5, 2: 1.0}, {1: 0.5, 2: 0.0})


GRID = {"h1/m1": ("h1", "m1"), "h1/m2": ("h1", "m2"), "h2/m1": ("h2", "m1"), "h2/m2": ("h2", "m2")}


def test_a_grid_of_harnesses_and_models_has_the_effect_of_each() -> None:
    """Either factor is averaged over the other, task by task; without a full grid there is none."""
    rates: Mapping[str, Mapping[str, tuple[int, int]]] = {
        f"t{n}": {"h1/m1": (2, 2), "h1/m2": (1, 2), "h2/m1": (1, 2), "h2/m2": (0, 2)} for n in range(8)}
    found = grid(GRID, rates)
    assert found is not None
    assert found.rates == {"h1": {"m1": 1.0, "m2": 0.5}, "h2": {"m1": 0.5, "m2": 0.0}}
    assert [(one.factor, one.a, one.b, one.difference) for one in found.effects] == [
        ("harness", "h1", "h2", 0.5), ("model", "m1", "m2", 0.5)]
    assert all(one.p == 2 / 2**8 and one.p_adjusted == 2 * one.p for one in found.effects)
    assert grid({name: GRID[name] for name in list(GRID)[:3]}, rates) is None
    assert grid({"a": ("h", "m"), "b": ("h", "n")}, rates) is None


Counts = tuple[tuple[int, int], tuple[int, int]]


def round_of(chance: random.Random, chances: Chances, tasks: int, attempts: int) -> list[Counts]:
    """(passed, tries) of two agents at ``tasks`` tasks, each with its own chances."""
    def tried(p: float) -> tuple[int, int]:
        return sum(chance.random() < p for _ in range(attempts)), attempts

    pairs = (chances(chance) for _ in range(tasks))
    return [(tried(first), tried(second)) for first, second in pairs]


def rejected(chances: Chances, tasks: int, attempts: int, rounds: int, alpha: float = 0.05) -> float:
    """The share of rounds in which the difference is decided."""
    chance = random.Random(7)
    return sum(sign_flip([a - b for (a, _), (b, _) in round_of(chance, chances, tasks, attempts)]) <= alpha
               for _ in range(rounds)) / rounds


def equal(chance: random.Random) -> tuple[float, float]:
    """Both have the task's own chance."""
    p = chance.betavariate(0.8, 0.8)
    return p, p


def better(chance: random.Random) -> tuple[float, float]:
    """The first is better by 15 points on average, and not on each task."""
    p = chance.uniform(0.1, 0.7)
    return min(1.0, max(0.0, p + 0.15 + chance.choice((-0.1, 0.1)))), p


def test_equal_agents_are_told_apart_no_more_often_than_promised() -> None:
    """Forty tasks, five attempts, one chance for both: of 1,500 rounds 5 % are decided at most (3 standard errors)."""
    assert rejected(equal, 40, 5, 1500) <= 0.05 + 3 * (0.05 * 0.95 / 1500) ** 0.5


def test_a_known_difference_is_found_as_often_as_promised() -> None:
    """Two stochastic agents, 15 points apart: the share of rounds decided is what the power formula says."""
    truth = spread(round_of(random.Random(1), better, 4000, 5))
    assert truth is not None
    assert truth.within == pytest.approx(0.43, abs=0.02)  # p(1 - p) of either, by the chances above
    attempts = 5
    se = ((truth.between + (truth.within or 0) / attempts) / 40) ** 0.5
    promised = 1 - NormalDist().cdf(NormalDist().inv_cdf(0.975) - 0.15 / se)
    assert rejected(better, 40, attempts, 600) == pytest.approx(promised, abs=0.05)
    assert promised > 0.85


def test_the_attempts_asked_for_decide_with_the_power_promised() -> None:
    """A difference of 6 points at 40 tasks: with the attempts that the formula names, four of five rounds decide it."""
    def slightly(chance: random.Random) -> tuple[float, float]:
        p = chance.uniform(0.2, 0.7)
        return p + 0.06, p

    seen = spread(round_of(random.Random(2), slightly, 3000, 5))
    assert seen is not None
    asked = needed(0.06, replace(seen, tasks=40), power=0.8)
    assert asked.attempts
    assert 15 < asked.attempts < 40
    assert rejected(slightly, 40, asked.attempts, 300) == pytest.approx(0.8, abs=0.07)
    assert rejected(slightly, 40, 5, 300) < 0.5


def test_intervals_over_tasks_cover_what_they_promise() -> None:
    """The true difference lies in the 95 % interval in 92 % of rounds at least, at forty tasks."""
    chance, inside = random.Random(5), 0
    for seed in range(250):
        counts = round_of(chance, better, 40, 5)
        low, high = interval([(a - b) / 5 for (a, _), (b, _) in counts], rounds=400, seed=seed) or (1, 0)
        inside += low <= 0.15 <= high
    assert inside / 250 >= 0.92


def test_a_difference_that_no_attempts_decide_asks_for_tasks() -> None:
    """Tasks that differ more than the agents do: attempts are None, tasks are named."""
    counts = [((5, 5), (0, 5)), ((0, 5), (5, 5))] * 5 + [((3, 5), (2, 5))]
    seen = spread(counts)
    assert seen is not None
    asked = needed(0.02, seen)
    assert asked.attempts is None
    assert asked.tasks
    assert needed(0.0, seen).tasks is None
    assert spread(counts[:1]) is None
