"""The simulation of a run: exact where arithmetic is, within the bounds of list scheduling elsewhere, repeatable."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.errors import Cause
from woodshed.measure.simulation import Failures, Limits, Node, Sample, forecast, order_of, simulate
from woodshed.model.retry import Broken, RetryRule, RetryRules

DURATIONS = st.lists(st.floats(0.01, 100), min_size=1, max_size=30)
BROKEN = Broken(cause=Cause.ENVIRONMENT, stage="prepare", retryable=True)


@given(DURATIONS, st.integers(1, 6), st.integers(1, 3))
def test_a_run_takes_as_long_as_list_scheduling_allows(durations: list[float], slots: int, nodes: int) -> None:
    """Never shorter than the longest attempt or the shared work, never longer than Graham's bound (1969)."""
    samples = {str(n): [Sample(seconds)] for n, seconds in enumerate(durations)}
    done = simulate(list(samples), samples, [Node(slots) for _ in range(nodes)])
    machines, work, longest = slots * nodes, sum(durations), max(durations)
    assert done.executions == len(durations)
    assert done.most_at_once <= machines
    assert math.isclose(done.busy_s, work)
    assert done.makespan_s >= max(longest, work / machines) - 1e-9
    if nodes == 1:
        assert done.makespan_s <= work / machines + (1 - 1 / machines) * longest + 1e-9


@given(DURATIONS, st.integers(0, 2**32))
def test_the_same_seed_tells_the_same(durations: list[float], seed: int) -> None:
    """Everything random comes from the seed; another seed draws other executions of the same distribution."""
    samples = {"t": [Sample(seconds) for seconds in durations]}
    tasks = list(order_of(["t"], 20))
    one, two = (simulate(tasks, samples, [Node(3)], seed=seed) for _ in range(2))
    assert one == two
    assert min(durations) * 20 <= one.busy_s + 1e-6
    assert one.busy_s <= max(durations) * 20 + 1e-6


@given(st.integers(1, 20), st.integers(1, 8), st.integers(1, 8))
def test_an_endpoint_serves_so_many_at_once(count: int, slots: int, places: int) -> None:
    """Equal attempts go through the narrower of slots and places in rounds; who waits keeps its slot."""
    done = simulate(["t"] * count, {"t": [Sample(2.0, model_s=2.0)]}, [Node(slots)], limits=Limits(places=places))
    assert math.isclose(done.makespan_s, 2.0 * math.ceil(count / min(slots, places)))
    assert (done.waited_s > 0) == (min(slots, count) > places)


@given(st.integers(1, 10), st.floats(0.5, 4))
def test_processors_are_shared(count: int, cores: float) -> None:
    """Attempts that only compute take as long as processors allow, however many slots there are; others do not."""
    busy = simulate(["t"] * count, {"t": [Sample(3.0, cpu_s=3.0)]}, [Node(100, cores=cores)])
    assert busy.makespan_s <= 3.0 * max(1.0, count / cores) + 1e-9
    assert busy.makespan_s >= 3.0
    assert simulate(["t"] * count, {"t": [Sample(3.0)]}, [Node(100, cores=cores)]).makespan_s == 3.0


def test_broken_executions_cost_time_and_are_tried_again() -> None:
    """A task that always breaks is given up after its retries; one that never does is not touched by the rules."""
    rules = RetryRules(retry=(RetryRule(max=2, backoff_s=10.0, jitter=0.0),), infrastructure=5)
    done = simulate(["t"], {"t": [Sample(1.0, broken=BROKEN)]}, [Node(1)], rules=rules)
    assert (done.executions, done.given_up, done.retried_s) == (3, 1, 3.0)
    assert math.isclose(done.makespan_s, 1 + 10 + 1 + 20 + 1)
    assert simulate(["t"], {"t": [Sample(1.0)]}, [Node(1)], rules=rules).executions == 1


def test_a_node_that_comes_later_helps_from_then_on() -> None:
    """Ten attempts of a second on one slot, and a second one after five seconds: seven and a half, rounded up."""
    done = simulate(["t"] * 10, {"t": [Sample(1.0)]}, [Node(1), Node(1, from_s=5.0)])
    assert done.makespan_s == 8.0


def test_the_forecast_names_what_a_run_waits_for() -> None:
    """Slots, processors, the endpoint, or the longest attempts; and tells what retries add."""
    samples = {"t": [Sample(10.0, cpu_s=9.0, model_s=0.0)]}
    assert forecast(["t"] * 100, samples, [Node(10)], rounds=2).bottleneck == "slots"
    assert forecast(["t"] * 100, samples, [Node(100, cores=4)], rounds=2).bottleneck == "processors"
    asking = {"t": [Sample(10.0, model_s=9.0)]}
    assert forecast(["t"] * 100, asking, [Node(100)], limits=Limits(places=5), rounds=2).bottleneck == "endpoint"
    few = forecast(["t"] * 3, samples, [Node(100)], rounds=2)
    assert few.bottleneck == "the longest attempts"
    assert (few.makespan_p50_s, few.executions, few.retries) == (10.0, 3.0, 0.0)
    flaky = {"t": [Sample(10.0), Sample(10.0), Sample(10.0, broken=BROKEN)]}
    told = forecast(["t"] * 60, flaky, [Node(10)], rounds=10)
    assert 0.2 < told.retry_share < 0.5
    assert told.makespan_p50_s <= told.makespan_p90_s


def test_what_is_not_recorded_cannot_be_told() -> None:
    """A task without samples, or no slot at all, is refused."""
    with pytest.raises(ValueError, match="nothing is recorded of b"):
        simulate(["a", "b"], {"a": [Sample(1.0)]}, [Node(1)])
    with pytest.raises(ValueError, match="no slot"):
        simulate(["a"], {"a": [Sample(1.0)]}, [Node(0)])


@given(st.integers(1, 30), st.integers(1, 4), st.floats(0.1, 5))
def test_beginnings_are_apart(count: int, slots: int, apart_s: float) -> None:
    """However many slots there are, attempts begin no faster than the queue hands them out, or the rate allows."""
    for limits in (Limits(apart_s=apart_s), Limits(per_minute=60 / apart_s)):
        done = simulate(["t"] * count, {"t": [Sample(0.001)]}, [Node(1) for _ in range(slots)], limits=limits)
        assert done.makespan_s >= count * apart_s - 1e-6
        assert done.makespan_s <= count * apart_s + 0.001 * count + 1e-6


@given(st.integers(1, 40), st.integers(1, 4), st.floats(5, 500), st.integers(0, 2**16))
def test_nodes_that_fail_lose_time_and_no_attempt(count: int, nodes: int, mean_s: float, seed: int) -> None:
    """Every attempt is done in the end; what was lost is counted in what was used, and nothing is lost without them."""
    world = ["t"] * count, {"t": [Sample(1.0), Sample(3.0, model_s=1.0)]}, [Node(2) for _ in range(nodes)]
    done = simulate(*world, limits=Limits(places=3), failures=Failures(mean_s, repair_s=5.0), seed=seed)
    assert done.executions >= count
    assert (done.lost_s > 0) <= (done.failures > 0)
    assert done.busy_s - done.lost_s >= count - 1e-6
    assert done.makespan_s >= done.main_s
    calm = simulate(*world, limits=Limits(places=3), seed=seed)
    assert (calm.executions, calm.lost_s, calm.failures, calm.alone) == (count, 0.0, 0, 0)


def test_what_is_lost_twice_runs_alone() -> None:
    """Attempts longer than nodes live end one after the other, outside of the nodes."""
    done = simulate(["t"] * 4, {"t": [Sample(100.0)]}, [Node(4)], failures=Failures(10.0, repair_s=1.0, noticed_s=1.0))
    assert done.alone == 4
    assert done.makespan_s >= 400.0
    told = forecast(["t"] * 4, {"t": [Sample(100.0)]}, [Node(4)], failures=Failures(10.0, repair_s=1.0), rounds=3)
    assert told.bottleneck == "alone"
    assert told.lost_share > 0
    assert told.added_by_retries_s >= 300.0


def test_a_place_is_free_once_the_model_has_answered() -> None:
    """Of attempts that ask for a second and verify for one, two at once keep one place busy."""
    done = simulate(["t"] * 10, {"t": [Sample(2.0, model_s=1.0)]}, [Node(2)], limits=Limits(places=1))
    assert math.isclose(done.makespan_s, 11.0)
