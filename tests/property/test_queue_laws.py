"""Sharing out slots: no bound is exceeded, no slot is left idle that could work, and equals are treated as such."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from woodshed.store.sharing import Waiting, share_out

GROUPS = st.lists(
    st.builds(
        Waiting, run=st.sampled_from("abcd"), project=st.sampled_from("pq"), priority=st.integers(0, 2),
        created_at=st.sampled_from(["1", "2"]), slots=st.none(), endpoint=st.sampled_from(["", "e"]),
        ready=st.integers(0, 6), running=st.integers(0, 6),
    ), max_size=6, unique_by=lambda group: (group.run, group.endpoint),
)
ROOM = st.dictionaries(
    st.sampled_from(["run:a", "run:b", "project:p", "project:q", "endpoint:e", "endpoint:"]), st.integers(0, 5)
)


@given(GROUPS, st.integers(0, 20), ROOM)
def test_bounds_hold_and_no_slot_idles(groups: list[Waiting], wanted: int, room: dict[str, int]) -> None:
    """At most what is wanted, ready and allowed begins; and where less begins, nothing more could."""
    given_out = share_out(groups, wanted, room)
    assert sum(given_out.values()) <= wanted
    begun: Counter[str] = Counter()
    for group in groups:
        count = given_out.get((group.run, group.endpoint), 0)
        assert 0 <= count <= group.ready
        for scope in group.scopes:
            begun[scope] += count
    assert all(begun[scope] <= bound for scope, bound in room.items())
    if sum(given_out.values()) < wanted:
        for group in groups:
            full = any(begun[scope] >= room[scope] for scope in group.scopes if scope in room)
            assert full or given_out.get((group.run, group.endpoint), 0) == group.ready


@given(GROUPS, st.integers(0, 20))
def test_a_higher_priority_is_never_passed_over(groups: list[Waiting], wanted: int) -> None:
    """Without bounds nothing of a lower priority begins while something of a higher one is ready."""
    given_out = share_out(groups, wanted, {})
    served = [group for group in groups if given_out.get((group.run, group.endpoint))]
    for group in groups:
        if given_out.get((group.run, group.endpoint), 0) < group.ready:
            assert all(other.priority >= group.priority for other in served)


@given(st.integers(1, 30), st.integers(0, 5), st.integers(0, 5))
def test_projects_end_up_even(wanted: int, one: int, two: int) -> None:
    """Between two projects with enough to do, what is at work differs by at most one, or by what it differed before."""
    groups = [
        Waiting(run=name, project=name, priority=0, created_at="1", slots=None, endpoint="", ready=100, running=running)
        for name, running in (("p", one), ("q", two))
    ]
    given_out = share_out(groups, wanted, {})
    after = [running + given_out.get((name, ""), 0) for name, running in (("p", one), ("q", two))]
    assert abs(after[0] - after[1]) <= max(1, abs(one - two) - wanted)
