"""A 429 with Retry-After is obeyed, whatever form and size the header has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from email.utils import formatdate

import pytest

from courier import Backoff, Client, Request, Response, RetriesExhausted

NOW = 1_950_000_000.0  # far from any machine's own date: Saturday, 17 October 2031, 08:00:00 GMT
URL = "https://api.example.com/v1/orders"
GET = Request("GET", URL)


class FakeClock:
    def __init__(self) -> None:
        self.time = NOW
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.sleeps.append(seconds)
        self.time += seconds


class Server:
    """Answers by rule; records when and where each request arrived."""

    def __init__(self, clock: FakeClock, answer: Callable[[int], Response]) -> None:
        self._clock = clock
        self._answer = answer
        self.arrivals: list[tuple[float, str]] = []

    def send(self, request: Request) -> Response:
        self.arrivals.append((self._clock.time - NOW, request.url))
        return self._answer(len(self.arrivals))


def busy(value: str | None = None, name: str = "Retry-After", status: int = 429) -> Response:
    return Response(status, {"Content-Type": "text/plain"} | ({} if value is None else {name: value}))


def wait_after(value: str | None, *, name: str = "Retry-After", status: int = 429, **options: float) -> float:
    """How long the client waits between one busy answer and its retry; the backoff alone would be 0.75 s."""
    clock = FakeClock()
    server = Server(clock, lambda n: busy(value, name, status) if n == 1 else Response(200))
    client = Client(server, clock=clock, backoff=Backoff(rng=lambda: 0.5), **options)  # type: ignore[arg-type]
    assert client.send(GET).status == 200
    assert len(server.arrivals) == 2
    assert server.arrivals[1][0] == pytest.approx(sum(clock.sleeps))
    return sum(clock.sleeps)


BACKOFF = 0.75


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process runs in a time zone that is not UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_seconds_are_waited() -> None:
    """A number of seconds is waited, plus at most the backoff."""
    for seconds in (2, 30, 119):
        assert seconds <= wait_after(str(seconds)) <= seconds + BACKOFF


def test_header_names_have_no_case() -> None:
    """Servers write the name as they like."""
    for name in ("retry-after", "RETRY-AFTER", "Retry-after"):
        assert 30 <= wait_after("30", name=name) <= 30 + BACKOFF


def test_an_http_date_is_waited_for(elsewhere: None) -> None:
    """The preferred date format counts against the client's clock, whatever the machine's zone and date."""
    assert 45 <= wait_after(formatdate(NOW + 45, usegmt=True)) <= 45 + BACKOFF


def test_the_obsolete_date_formats_are_understood(elsewhere: None) -> None:
    """RFC 850 and asctime dates are GMT too."""
    then = time.gmtime(NOW + 45)
    for value in (time.strftime("%A, %d-%b-%y %H:%M:%S GMT", then), time.asctime(then)):
        assert 45 <= wait_after(value) <= 45 + BACKOFF, value


def test_the_date_is_measured_when_the_answer_arrives() -> None:
    """A second 429 that names the same moment only asks for what is left of the time."""
    clock = FakeClock()
    until = formatdate(NOW + 60, usegmt=True)
    server = Server(clock, lambda n: busy("20") if n == 1 else busy(until) if n == 2 else Response(200))
    Client(server, clock=clock, backoff=Backoff(rng=lambda: 0.0)).send(GET)
    assert 60 <= server.arrivals[2][0] <= 62


def test_zero_and_the_past_do_not_mean_at_once() -> None:
    """The backoff is the least that is waited."""
    values = ["0", "000", formatdate(NOW, usegmt=True), formatdate(NOW - 3600, usegmt=True), formatdate(0, usegmt=True)]
    for value in values:
        assert wait_after(value) == pytest.approx(BACKOFF), value


def test_a_short_time_does_not_undercut_the_backoff() -> None:
    """At a late attempt the backoff is longer than what the server asks, and wins."""
    clock = FakeClock()
    server = Server(clock, lambda n: busy("1") if n < 5 else Response(200))
    Client(server, clock=clock, backoff=Backoff(rng=lambda: 0.5)).send(GET)
    times = [at for at, _ in server.arrivals]
    waits = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    for wait, backoff in zip(waits, (0.75, 1.5, 3.0, 6.0), strict=True):
        assert max(1, backoff) <= wait <= 1 + backoff


def test_a_header_of_another_form_counts_as_missing() -> None:
    """Neither digits nor a date: exactly the backoff, and no exception."""
    strange = ["", " ", "soon", "-5", "+5", "1e3", "inf", "nan", "0x10", "1_000", "²", "٣٠", "30 seconds", "30;q=1"]
    strange += ["Sat, 99 Oct 2031 99:99:99 GMT", "2031-13-45", "GMT", "\x00", "Sat, 17 Foo 2031 08:01:00 GMT"]
    for value in strange:
        assert wait_after(value) == pytest.approx(BACKOFF), value


def test_no_wait_is_longer_than_the_cap() -> None:
    """Large numbers and far dates are cut to max_wait_s, 120 s by default."""
    for value in ("121", "86400", "9" * 40, "9" * 400, formatdate(NOW + 10**6, usegmt=True)):
        assert wait_after(value) == pytest.approx(120), value
        assert wait_after(value, max_wait_s=10.0) == pytest.approx(10), value


def test_absurd_headers_never_raise() -> None:
    """What no integer or calendar can hold is waited for somewhere between the backoff and the cap."""
    absurd = ["9" * 5000, "Mon, 01 Jan 0000 00:00:00 GMT"]
    absurd += ["Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 99999 23:59:59 GMT"]
    for value in absurd:
        assert BACKOFF <= wait_after(value) <= 120 + BACKOFF


def test_attempts_stay_bounded() -> None:
    """A server that always says 'in a second' gets max_attempts requests and no more."""
    clock = FakeClock()
    server = Server(clock, lambda _: busy("1"))
    with pytest.raises(RetriesExhausted) as caught:
        Client(server, clock=clock, max_attempts=4).send(GET)
    assert caught.value.response.status == 429
    assert len(server.arrivals) == 4
    assert len(clock.sleeps) == 3
