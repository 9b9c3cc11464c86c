"""The gate of a black-box agent: its limits, its usage and its steps, at the one place where it meets its model."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from woodshed.errors import ContextExceeded, ModelFault, ModelRefused, WoodshedError
from woodshed.harness.external.observe import Reader, Seen
from woodshed.harness.limits import Meter
from woodshed.harness.tokens import weigh_message
from woodshed.interfaces import Acting, ModelRequest, ModelResponse
from woodshed.model import EventKind, StopReason

_OF_THE_REQUEST = frozenset({400, 413, 422})
"""Statuses by which an endpoint refuses what was sent, and not who sends it."""
_REFUSED = 20
"""So many refusals before any answer, and nothing more is sent."""


class Counted:
    """See :class:`woodshed.interfaces.Gate`. ``reached`` is the limit that was met; ``asked`` what was let in."""

    def __init__(self, acting: Acting, reader: Reader) -> None:
        self._acting, self._meter, self._reader = acting, Meter(acting), reader
        self._seen, self._running = Seen(), 0
        self._fault: Exception | None = None
        self._told_at = time.monotonic()
        self.asked = self.answered = self._vain = 0
        self.reached: StopReason | None = None
        self._stop: StopReason | None = None
        self.met = asyncio.Event()
        """A limit was."""

    def before(self, request: ModelRequest) -> ModelRequest | StopReason:
        """What it may ask. Calls in flight count as turns, and so do those that it gave up or brought to nothing.

        Neither many at once nor many in vain are a way around a limit. The first that is not let in tells the results
        of the last calls; of what comes after it nothing is written down.
        """
        if self._stop is not None:
            return self._stop
        self._seen, facts = self._reader.asked(self._seen, request.messages)
        since = {"seconds": round(time.monotonic() - self._told_at, 6)}
        for kind, data in facts:
            self._acting.emit(kind, {**data, **since} if kind is EventKind.TOOL_RESULT else data)
        self._stop = self._over()
        if self._stop is not None:
            self.met.set()
            return self._stop
        self.asked, self._running = self.asked + 1, self._running + 1
        left = self._meter.tokens_left()
        return request if left is None else replace(request, max_tokens=min(request.max_tokens or left, left))

    def _over(self) -> StopReason | None:
        """The limit that forbids another call. An endpoint that refuses from the start is none: its fault stands."""
        if not self.answered and self._vain >= _REFUSED:
            return StopReason.TURNS
        stop = self._meter.reached() or self._meter.no_more_calls()
        taken = self._acting.usage.turns + self._running + (self._vain if self.answered else 0)
        if stop is None and taken >= self._acting.agent.limits.turns:
            stop = StopReason.TURNS
        self.reached = stop
        return stop

    def after(self, request: ModelRequest, response: ModelResponse) -> None:
        """It was answered."""
        self._running, self.answered, self._fault = self._running - 1, self.answered + 1, None
        self._told_at = time.monotonic()
        counted = response.prompt_tokens + response.completion_tokens  # a conversation is weighed where nobody counts
        self._meter.turn(response, 0 if counted else sum(weigh_message(m.content, m.tool_calls)
                                                         for m in request.messages))
        self._seen, facts = self._reader.answered(self._seen, response)
        for kind, data in facts:
            self._acting.emit(kind, data)
            self._meter.tool_call()

    def failed(self, fault: Exception | None) -> None:
        """It came to nothing."""
        self._running -= 1
        self._vain += fault is None or self._its_own(fault)
        self._fault = fault or self._fault

    def broken(self, what: str) -> None:
        """A part of ours did not serve it."""
        self._acting.emit(EventKind.NOTE, {"text": what})

    @staticmethod
    def _its_own(fault: Exception) -> bool:
        """Whether the endpoint refused what was asked, and not who asks."""
        return isinstance(fault, ContextExceeded) or (
            isinstance(fault, ModelRefused) and fault.status in _OF_THE_REQUEST)

    @property
    def full(self) -> bool:
        """The last call did not fit the model's window."""
        return isinstance(self._fault, ContextExceeded)

    @property
    def fault(self) -> WoodshedError | None:
        """The fault of ours that the agent ended upon. What only its own request brought about is none.

        Before any answer the endpoint was never right; after one, a request that it refuses was the agent's.
        """
        fault = self._fault
        if not isinstance(fault, WoodshedError) or isinstance(fault, ContextExceeded):
            return None
        if self.answered and self._its_own(fault):
            return None
        return fault if isinstance(fault, ModelFault) or fault.cause is not None else None
