"""Laws of the curriculum: what is drawn, and how what was tried weighs."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.measure.curriculum import Curriculum, History, Standing, Tried, informative, mixed, standing

COUNTS = st.builds(Tried, st.integers(0, 60).map(float), st.integers(0, 60).map(float), st.integers(0, 9))
NAMES = st.sampled_from([f"t{number}" for number in range(9)])
HISTORIES = st.builds(History, st.dictionaries(NAMES, COUNTS), st.dictionaries(st.sampled_from(["a", "b"]), COUNTS))
TASKS = st.dictionaries(NAMES, st.sampled_from(["a", "b"]), min_size=1)


@given(st.floats(0, 1), st.integers(2, 20))
def test_a_group_is_most_often_mixed_at_one_half(rate: float, size: int) -> None:
    """The chance is between nothing and that at one half, the same for p and 1 - p, and nothing at the ends."""
    assert 0 <= mixed(rate, size) <= mixed(0.5, size) + 1e-12
    assert mixed(rate, size) == pytest.approx(mixed(1 - rate, size), abs=1e-12)
    assert mixed(0.0, size) == mixed(1.0, size) == 0.0


@given(COUNTS, st.integers(2, 12))
@settings(max_examples=40)
def test_what_a_task_is_expected_to_teach_is_the_mean_over_what_is_possible(tried: Tried, size: int) -> None:
    """The closed form is what many rates, drawn from what the attempts leave possible, come to."""
    dice = random.Random(0)
    drawn = [mixed(dice.betavariate(tried.passed + 1, tried.failed + 1), size) for _ in range(2000)]
    assert informative(tried, size) == pytest.approx(sum(drawn) / len(drawn), abs=0.05)


@given(st.integers(1, 50), st.integers(2, 12))
def test_failing_again_never_makes_a_task_that_was_never_solved_worth_more(failed: int, size: int) -> None:
    """The same holds for one that is always solved: the more alike, the less it teaches."""
    assert informative(Tried(0, failed + 1), size) < informative(Tried(0, failed), size)
    assert informative(Tried(failed + 1, 0), size) < informative(Tried(failed, 0), size)


@given(TASKS, HISTORIES, st.integers(0, 30), st.integers(0, 1000))
@settings(max_examples=60)
def test_a_draw_repeats_itself_and_takes_nothing_twice_before_all(
    tasks: dict[str, str], history: History, count: int, seed: int
) -> None:
    """As many as were asked for, of the tasks alone; the same seed draws the same; none a second time too early."""
    chosen = Curriculum().choose(tasks, history, count=count, seed=seed)
    assert chosen == Curriculum().choose(dict(reversed(tasks.items())), history, count=count, seed=seed)
    assert len(chosen) == count
    assert set(chosen) <= tasks.keys()
    times = Counter(chosen)
    assert max(times.values(), default=0) - min((times[name] for name in tasks), default=0) <= 1


def test_what_never_or_always_ends_alike_is_dropped_but_looked_at_again() -> None:
    """Without exploring only the informative ones are drawn; with it the dropped ones come now and then."""
    history = {"never": Tried(0, 30, 4), "always": Tried(30, 0, 4), "half": Tried(15, 15, 4), "some": Tried(3, 27, 4)}
    tasks, told = {name: name for name in history}, History(history)
    strict = Counter(Curriculum(explore=0.0).choose(tasks, told, count=2, seed=seed)[n]
                     for seed in range(200) for n in (0, 1))
    assert set(strict) == {"half", "some"}
    looking = Counter(Curriculum(explore=0.2).choose(tasks, told, count=1, seed=seed)[0] for seed in range(400))
    assert 5 < looking["never"] < 60
    assert looking["half"] > looking["some"] / 2
    assert [standing(history[name]) for name in ("never", "always", "half")] == [
        Standing.NEVER, Standing.ALWAYS, Standing.INFORMATIVE]


def test_a_task_tells_a_part_of_others_of_its_kind() -> None:
    """Where all tried ones of a template fail, an untried one is worth less than one of a template nobody tried."""
    history = History()
    for number in range(10):
        history.add(f"a{number}", "a", [False] * 8)
    tasks = {**dict.fromkeys(history.tasks, "a"), "new-a": "a", "new-b": "b"}
    worths = Curriculum().worths(tasks, history)
    assert worths["new-a"] < worths["new-b"] / 2
    assert Curriculum(alike=0.0).worths(tasks, history)["new-a"] == worths["new-b"]


def test_history_fades() -> None:
    """What a weaker model failed at counts less with each group since; groups without a valid attempt tell nothing."""
    history = History()
    for ended in ([False] * 8, [], [True] * 8):
        history.add("t", "k", ended)
    assert history == History({"t": Tried(8.0, 4.0, 2)}, {"k": Tried(8.0, 7.2, 2)})
    assert history.of("t").rate == pytest.approx(2 / 3)
    assert history.of("other").rate is None
    with pytest.raises(ValueError, match="no tasks"):
        Curriculum().choose({}, history, count=1, seed=0)
