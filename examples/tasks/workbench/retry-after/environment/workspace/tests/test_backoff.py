from __future__ import annotations

from random import Random

from courier import Backoff, Client, Request, Response
from tests.fakes import FakeClock, FakeTransport


def test_jitter_stays_within_the_upper_half_of_the_delay() -> None:
    backoff = Backoff(base_s=1.0, factor=2.0, max_s=60.0, rng=Random(7).random)
    for attempt, full in [(1, 1.0), (2, 2.0), (3, 4.0), (7, 60.0), (20, 60.0)]:
        assert full / 2 <= backoff.delay(attempt) <= full


def test_clients_with_different_luck_do_not_come_back_together() -> None:
    waits = []
    for seed in range(20):
        clock = FakeClock()
        client = Client(
            FakeTransport([Response(429), Response(503), Response(200)]),
            clock=clock,
            backoff=Backoff(rng=Random(seed).random),
        )
        client.send(Request("GET", "https://api.example.com/"))
        waits.append(tuple(clock.sleeps))
    assert len(set(waits)) == 20


def test_each_wait_takes_one_number_from_the_generator() -> None:
    numbers = iter([0.0, 0.5, 1.0])
    clock = FakeClock()
    client = Client(
        FakeTransport([Response(429), Response(429), Response(429), Response(200)]),
        clock=clock,
        backoff=Backoff(rng=lambda: next(numbers)),
    )
    client.send(Request("GET", "https://api.example.com/"))
    assert clock.sleeps == [0.5, 1.5, 4.0]
