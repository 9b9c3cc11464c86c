"""Send, decide, wait, send again."""

from __future__ import annotations

from threading import Lock
from urllib.parse import urlsplit

from courier.backoff import Backoff
from courier.clock import Clock, SystemClock
from courier.errors import RetriesExhausted
from courier.retry_after import retry_after
from courier.transport import Request, Response, Transport

RETRIED = frozenset({429, 502, 503, 504})


class Client:
    """Sends requests over ``transport``; answers with a status in ``RETRIED`` are tried again.

    A 429 with ``Retry-After`` pauses its host for every caller of this client, for ``max_wait_s`` at most.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock | None = None,
        backoff: Backoff | None = None,
        max_attempts: int = 5,
        max_wait_s: float = 120.0,
    ) -> None:
        if max_attempts < 1:
            raise ValueError("max_attempts must be at least 1")
        self._transport = transport
        self._clock = clock or SystemClock()
        self._backoff = backoff or Backoff()
        self._max_attempts = max_attempts
        self._max_wait_s = max_wait_s
        self._paused_until: dict[str, float] = {}
        self._lock = Lock()

    def send(self, request: Request) -> Response:
        """The first answer that is not to be tried again.

        Raises :class:`RetriesExhausted` with the last answer when ``max_attempts`` attempts did not bring one.
        """
        host = (urlsplit(request.url).hostname or "").lower()
        attempt = 1
        while True:
            self._wait_for(host)
            response = self._transport.send(request)
            if response.status not in RETRIED:
                return response
            asked_s = self._note_pause(host, response)
            if attempt == self._max_attempts:
                raise RetriesExhausted(response, attempt)
            delay_s = self._backoff.delay(attempt)
            self._clock.sleep(delay_s if asked_s is None else max(asked_s, delay_s))
            attempt += 1

    def _note_pause(self, host: str, response: Response) -> float | None:
        """The wait this answer asks for, capped; remembered for the host, and never shortened by a later answer."""
        now = self._clock.now()
        asked_s = retry_after(response, now) if response.status == 429 else None
        if asked_s is None:
            return None
        asked_s = min(asked_s, self._max_wait_s)
        with self._lock:
            self._paused_until[host] = max(now + asked_s, self._paused_until.get(host, 0.0))
        return asked_s

    def _wait_for(self, host: str) -> None:
        """Return when nobody has asked to leave ``host`` alone any longer."""
        while True:
            with self._lock:
                left_s = self._paused_until.get(host, 0.0) - self._clock.now()
                if left_s <= 0:
                    self._paused_until.pop(host, None)
                    return
            self._clock.sleep(left_s)
