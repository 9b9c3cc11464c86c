"""Send, decide, wait, send again."""

from __future__ import annotations

from courier.backoff import Backoff
from courier.clock import Clock, SystemClock
from courier.errors import RetriesExhausted
from courier.transport import Request, Response, Transport

RETRIED = frozenset({429, 502, 503, 504})


class Client:
    """Sends requests over ``transport``; answers with a status in ``RETRIED`` are tried again."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock | None = None,
        backoff: Backoff | None = None,
        max_attempts: int = 5,
    ) -> None:
        if max_attempts < 1:
            raise ValueError("max_attempts must be at least 1")
        self._transport = transport
        self._clock = clock or SystemClock()
        self._backoff = backoff or Backoff()
        self._max_attempts = max_attempts

    def send(self, request: Request) -> Response:
        """The first answer that is not to be tried again.

        Raises :class:`RetriesExhausted` with the last answer when ``max_attempts`` attempts did not bring one.
        """
        attempt = 1
        while True:
            response = self._transport.send(request)
            if response.status not in RETRIED:
                return response
            if attempt == self._max_attempts:
                raise RetriesExhausted(response, attempt)
            self._clock.sleep(self._backoff.delay(attempt))
            attempt += 1
