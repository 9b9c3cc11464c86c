"""What one caller was told holds for every caller of the same client."""

from __future__ import annotations

import pytest

from courier import Backoff, Client, Request, Response, RetriesExhausted
from test_retry_after import NOW, FakeClock, Server, busy

HERE = Request("GET", "https://api.example.com/v1/orders")
SAME_HOST = Request("POST", "https://api.example.com/v1/invoices?page=2")
ELSEWHERE = Request("GET", "https://api.example.org/v1/orders")


def told_to_wait(value: str, **options: float) -> tuple[Client, Server, FakeClock]:
    """A client one of whose callers got a single 429 and gave up."""
    clock = FakeClock()
    server = Server(clock, lambda n: busy(value) if n == 1 else Response(200))
    client = Client(server, clock=clock, max_attempts=1, **options)  # type: ignore[arg-type]
    with pytest.raises(RetriesExhausted):
        client.send(HERE)
    assert clock.sleeps == []
    return client, server, clock


def test_other_callers_wait_for_the_rest_of_the_time() -> None:
    """Five seconds into a pause of thirty, another caller waits twenty-five, in one sleep."""
    client, server, clock = told_to_wait("30")
    clock.time += 5
    assert client.send(SAME_HOST).status == 200
    assert len(clock.sleeps) == 1
    assert 30 <= server.arrivals[1][0] <= 31


def test_other_hosts_are_not_held_up() -> None:
    """The pause belongs to the host that asked for it."""
    client, server, clock = told_to_wait("30")
    assert client.send(ELSEWHERE).status == 200
    assert clock.sleeps == []
    assert server.arrivals[1] == (0.0, ELSEWHERE.url)


def test_the_host_is_not_spelt_in_one_way_only() -> None:
    """Host names have no case."""
    client, server, _ = told_to_wait("30")
    client.send(Request("GET", "https://API.Example.com/v1/orders"))
    assert server.arrivals[1][0] >= 30


def test_the_pause_ends() -> None:
    """When the time is over, nobody waits."""
    client, server, clock = told_to_wait("30")
    clock.time += 32
    client.send(SAME_HOST)
    client.send(SAME_HOST)
    assert clock.sleeps == []
    assert len(server.arrivals) == 3


def test_the_cap_holds_for_everybody() -> None:
    """An absurd number does not lock the host for the other callers."""
    client, server, _ = told_to_wait("99999999", max_wait_s=20.0)
    client.send(SAME_HOST)
    assert 20 <= server.arrivals[1][0] <= 21


def test_nobody_waits_twice() -> None:
    """A caller's own wait and the host's pause are the same time."""
    clock = FakeClock()
    server = Server(clock, lambda n: busy("30") if n <= 2 else Response(200))
    Client(server, clock=clock, backoff=Backoff(rng=lambda: 0.0)).send(HERE)
    assert 60 <= server.arrivals[2][0] <= 62


def test_a_busy_answer_without_the_header_pauses_nobody_else() -> None:
    """The backoff is each caller's own affair."""
    clock = FakeClock()
    server = Server(clock, lambda n: Response(429) if n == 1 else Response(200))
    client = Client(server, clock=clock, max_attempts=1)
    with pytest.raises(RetriesExhausted):
        client.send(HERE)
    client.send(SAME_HOST)
    assert clock.sleeps == []
    assert clock.now() == NOW
