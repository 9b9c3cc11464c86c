"""Connections of all sandboxes: whoever comes late still gets a fair part."""

from __future__ import annotations

import resource

import pytest

from woodshed.sandbox.egress.seats import Seats


def _limited(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))


def test_one_that_takes_all_leaves_each_other_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone a sandbox may take an eighth of the descriptors; others then get their part, and it gets no more."""
    _limited(monkeypatch, 800)
    seats = Seats()
    for who in "abcd":
        seats.enter(who)
    assert sum(seats.take("a") for _ in range(500)) == 100
    assert [sum(seats.take(who) for _ in range(500)) for who in "bcd"] == [25, 25, 25]
    assert not any(seats.take(who) for who in "abcd")
    for _ in range(90):
        seats.give_back("a")
    assert sum(seats.take("b") for _ in range(500)) == 15, "as many as make a hundred again"
    seats.leave("c")
    seats.give_back("c")
    seats.leave("c")
    assert seats.take("a")


def test_every_sandbox_has_two_and_without_a_limit_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sandboxes share few descriptors each can do something; where there is no limit there is none."""
    _limited(monkeypatch, 64)
    seats = Seats()
    for who in range(50):
        seats.enter(who)
    assert all(sum(seats.take(who) for _ in range(2)) == 2 for who in range(50))
    assert not any(seats.take(who) for who in range(50))
    _limited(monkeypatch, resource.RLIM_INFINITY)
    assert all(seats.take(0) for _ in range(5000))
