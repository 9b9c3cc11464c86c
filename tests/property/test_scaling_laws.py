"""How many workers are wanted: always within bounds, still under a still load, gone when nothing is left."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.engine.scaling import SLACK, Bounds, Load, Scaler

LOADS = st.builds(Load, ready=st.integers(0, 5000), running=st.integers(0, 500), slots=st.floats(0, 64),
                  attempt_s=st.none() | st.floats(0, 1e5))
BUSY = LOADS.filter(lambda load: load.ready + load.running > 0)


@st.composite
def bounds(draw: st.DrawFn) -> Bounds:
    """Any bounds that can be."""
    least = draw(st.integers(0, 20))
    return Bounds(least, least + draw(st.integers(0, 200)), draw(st.floats(1, 1e5)), draw(st.floats(0, 600)))


@given(bounds(), st.lists(st.tuples(LOADS, st.floats(0, 600)), max_size=50))
def test_the_number_never_leaves_its_bounds(bounds: Bounds, ticks: list[tuple[Load, float]]) -> None:
    """Whatever comes in whatever order; and it never falls twice within the cool-down."""
    scaler, at, before, changed = Scaler(bounds), 0.0, bounds.least, -math.inf
    for load, passed in ticks:
        at += passed
        wanted = scaler.decide(load, at)
        assert bounds.least <= wanted <= bounds.most
        if wanted < before:
            assert at - changed >= bounds.cool_s
        if wanted != before:
            changed, before = at, wanted


@given(bounds(), LOADS, LOADS, st.floats(0.1, 60))
def test_a_still_load_moves_nobody(bounds: Bounds, first: Load, then: Load, tick_s: float) -> None:
    """From any state, a load that stays changes the number once at most, within a cool-down, and then never again."""
    scaler = Scaler(bounds)
    scaler.decide(first, 0.0)
    seen, k = [], math.ceil(bounds.cool_s / tick_s) + 1
    for tick in range(1, k + 20):
        seen.append(scaler.decide(then, tick * tick_s))
        if tick > 200:
            break
    assert sum(one != other for one, other in pairwise(seen)) <= 1
    if k <= 200:
        assert len(set(seen[k:])) <= 1


@given(bounds(), BUSY, st.floats(0.1, 60))
def test_what_is_wanted_is_reached_at_once_when_it_grows(bounds: Bounds, load: Load, tick_s: float) -> None:
    """From the least, one decision asks for all that is needed: work to do never waits for a tick."""
    scaler, need = Scaler(bounds), load.need(bounds.drain_s)
    wanted = scaler.decide(load, tick_s)
    assert wanted == bounds.within(max(need, 1))
    assert wanted >= min(bounds.most, 1)


@given(bounds(), LOADS, st.floats(0.1, 60))
def test_nothing_left_wants_the_least(bounds: Bounds, load: Load, tick_s: float) -> None:
    """Once the cool-down is over, whatever was wanted before."""
    scaler = Scaler(bounds)
    scaler.decide(load, 0.0)
    scaler.decide(Load(0, 0, 4.0, 10.0), bounds.cool_s + tick_s)
    assert scaler.wanted == bounds.least


@given(bounds(), st.integers(1, 500), st.floats(1, 64), st.floats(0.1, 1e4), st.lists(st.floats(0.9, 1.1), max_size=50))
def test_a_wavering_load_turns_back_once_at_most(
    bounds: Bounds, ready: int, slots: float, attempt_s: float, noise: list[float]
) -> None:
    """A pace that wavers by a tenth either way is within the slack: the number never falls after it rose."""
    scaler, seen = Scaler(bounds), [bounds.least]
    for tick, factor in enumerate(noise, 1):
        seen.append(scaler.decide(Load(ready, 0, slots, attempt_s * factor), tick * (bounds.cool_s + 1)))
    assert seen == sorted(seen)
    assert 1 + SLACK > 1.1 / 0.9


@given(LOADS, st.floats(1, 1e5))
def test_nobody_is_wanted_without_something_to_do(load: Load, drain_s: float) -> None:
    """Never more slots than attempts; with the workers needed, what is left is done in time, or as fast as one is."""
    need, left = load.need(drain_s), load.ready + load.running
    assert need * max(load.slots, 1.0) <= left * (1 + 1e-9)
    took = load.drain_s(math.ceil(need - 1e-9))
    if took is not None and load.attempt_s is not None:
        assert took <= max(drain_s, load.attempt_s) * (1 + 1e-6)


@pytest.mark.parametrize("bad", [(-1, 2), (3, 2), (0, 1, 0.0), (0, 1, 10.0, -1.0)])
def test_impossible_bounds_are_refused(bad: tuple[float, ...]) -> None:
    """Nothing is within them."""
    with pytest.raises(ValueError, match="no number of workers"):
        Bounds(*bad)  # type: ignore[arg-type]  # the parameters are numbers of both kinds
