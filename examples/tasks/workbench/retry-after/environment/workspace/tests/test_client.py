from __future__ import annotations

import pytest

from courier import Backoff, Client, Request, Response, RetriesExhausted
from tests.fakes import FakeClock, FakeTransport

GET = Request("GET", "https://api.example.com/v1/orders")


def client_for(transport: FakeTransport, clock: FakeClock, max_attempts: int = 5) -> Client:
    return Client(transport, clock=clock, backoff=Backoff(rng=lambda: 0.0), max_attempts=max_attempts)


def test_an_answer_is_returned_at_once() -> None:
    clock, transport = FakeClock(), FakeTransport([Response(404)])
    assert client_for(transport, clock).send(GET).status == 404
    assert clock.sleeps == []


def test_a_busy_server_is_asked_again() -> None:
    clock, transport = FakeClock(), FakeTransport([Response(503), Response(429), Response(200)])
    assert client_for(transport, clock).send(GET).status == 200
    assert clock.sleeps == [0.5, 1.0]


def test_the_last_attempt_is_not_followed_by_a_wait() -> None:
    clock, transport = FakeClock(), FakeTransport([Response(429)] * 3)
    with pytest.raises(RetriesExhausted) as caught:
        client_for(transport, clock, max_attempts=3).send(GET)
    assert caught.value.attempts == 3
    assert len(transport.requests) == 3
    assert len(clock.sleeps) == 2
