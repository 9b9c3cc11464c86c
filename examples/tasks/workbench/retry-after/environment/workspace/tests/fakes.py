"""A clock that only moves when somebody sleeps, and a transport with answers prepared."""

from __future__ import annotations

from collections.abc import Iterable

from courier import Request, Response


class FakeClock:
    def __init__(self, now: float = 1_900_000_000.0) -> None:
        self._now = now
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self._now += seconds


class FakeTransport:
    def __init__(self, answers: Iterable[Response]) -> None:
        self._answers = iter(answers)
        self.requests: list[Request] = []

    def send(self, request: Request) -> Response:
        self.requests.append(request)
        return next(self._answers)
