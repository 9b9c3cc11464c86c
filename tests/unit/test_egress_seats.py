"""Connections of all sandboxes: whoever comes late still gets a fair part."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from egressbox import box_with, python
from upstreams import host
from woodshed.sandbox.egress.seats import Seats
from woodshed.sandbox.native.engine import NativeEngine


def _limited(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))


def _taken(seats: Seats, who: object, most: int = 500) -> int:
    """How many ``who`` gets of ``most``."""
    for count in range(most):
        if not seats.free(who):
            return count
        seats.take(who)
    return most


def test_one_that_takes_all_leaves_each_other_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone a sandbox may take an eighth of the descriptors; others then get their part, and it gets no more."""
    _limited(monkeypatch, 800)
    seats = Seats()
    for who in "abcd":
        seats.enter(who)
    assert [_taken(seats, who) for who in "abcd"] == [100, 25, 25, 25]
    assert not any(seats.free(who) for who in "abcd")
    for _ in range(90):
        seats.give_back("a")
    assert _taken(seats, "b") == 15, "as many as make a hundred again"
    seats.leave("c")
    seats.give_back("c")
    seats.leave("c")
    assert seats.free("a")


def test_every_sandbox_has_two_and_without_a_limit_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sandboxes share few descriptors each can do something; where there is no limit there is none."""
    _limited(monkeypatch, 64)
    seats = Seats()
    for who in range(50):
        seats.enter(who)
    assert all(_taken(seats, who, 2) == 2 for who in range(50))
    assert not any(seats.free(who) for who in range(50))
    _limited(monkeypatch, resource.RLIM_INFINITY)
    assert _taken(seats, 0, 5000) == 5000


async def test_a_connection_without_a_seat_waits_for_one(
    shed_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a sandbox has its part it is not refused: what it begins meanwhile goes on when another connection ends."""
    monkeypatch.setattr(Seats, "free", lambda self, who: self._taken[who] < 2)
    engine = NativeEngine(shed_home)
    async with host() as api, box_with(engine, {"host": "a.test", "address": api.address}) as (box, seen):
        got = await python(box, r"""
def ask(s):
    s.sendall(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
many = [opened("a.test", 80) for _ in range(6)]
for s in many:
    ask(s)
print(sum(b"200 OK" in rest(s) for s in many))
""")
        assert got == "6"
        assert seen.reasons("refused") == []
    await engine.close()
