"""What worked before works still."""

from __future__ import annotations

from random import Random

import pytest

from courier import Backoff, Client, Request, Response, RetriesExhausted
from test_retry_after import FakeClock, Server, wait_after

GET = Request("GET", "https://api.example.com/")


def test_jitter_stays_within_the_upper_half_of_the_delay() -> None:
    """The delays double up to the cap; half of each is random."""
    backoff = Backoff(base_s=1.0, factor=2.0, max_s=60.0, rng=Random(7).random)
    for attempt, full in [(1, 1.0), (2, 2.0), (3, 4.0), (7, 60.0), (20, 60.0)]:
        assert full / 2 <= backoff.delay(attempt) <= full


def test_clients_with_different_luck_do_not_come_back_together() -> None:
    """Twenty clients have twenty different sequences of waits."""
    waits = set()
    for seed in range(20):
        clock = FakeClock()
        server = Server(clock, lambda n: Response((429, 503, 200)[n - 1]))
        Client(server, clock=clock, backoff=Backoff(rng=Random(seed).random)).send(GET)
        waits.add(tuple(clock.sleeps))
    assert len(waits) == 20


def test_each_wait_takes_one_number_from_the_generator() -> None:
    """The random numbers are used in their order, one a wait."""
    numbers = iter([0.0, 0.5, 1.0])
    clock = FakeClock()
    server = Server(clock, lambda n: Response(429 if n < 4 else 200))
    Client(server, clock=clock, backoff=Backoff(rng=lambda: next(numbers))).send(GET)
    assert clock.sleeps == [0.5, 1.5, 4.0]


def test_other_busy_answers_use_the_backoff() -> None:
    """502, 503 and 504 wait as they did, header or not."""
    for status in (502, 503, 504):
        assert wait_after(None, status=status) == pytest.approx(0.75)
        assert wait_after("30", status=status) == pytest.approx(0.75)


def test_other_answers_are_returned_at_once() -> None:
    """A status that is not in the list is the caller's, header or not."""
    for status in (200, 404, 500):
        clock = FakeClock()
        server = Server(clock, lambda _, status=status: Response(status, {"Retry-After": "30"}))
        client = Client(server, clock=clock)
        assert client.send(GET).status == status
        assert client.send(GET).status == status
        assert clock.sleeps == []


def test_the_last_answer_is_in_the_exception() -> None:
    """Without the header nothing changed about giving up."""
    clock = FakeClock()
    server = Server(clock, lambda _: Response(503))
    with pytest.raises(RetriesExhausted) as caught:
        Client(server, clock=clock, max_attempts=3, backoff=Backoff(rng=lambda: 0.0)).send(GET)
    assert (caught.value.attempts, caught.value.response.status) == (3, 503)
    assert clock.sleeps == [0.5, 1.0]
