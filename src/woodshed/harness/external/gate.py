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


class Counted:
    """See :class:`woodshed.interfaces.Gate`. ``reached`` is the limit that was met; ``asked`` what was let in."""

    def __init__(self, acting: Acting, reader: Reader) -> None:
        self._acting, self._meter, self._reader = acting, Meter(acting), reader
        self._seen, self._running = Seen(), 0
        self._fault: Exception | None = None
        self._told_at = time.monotonic()
        self.asked = self.answered = 0
        self.reached: StopReason | None = None
        self.met = asyncio.Event()
        """A limit was."""

    def before(self, request: ModelRequest) -> ModelRequest | StopReason:
        """What it may ask. Calls in flight count as turns: many at once are no way around a limit."""
        self._seen, facts = self._reader.asked(self._seen, request.messages)
        since = {"seconds": round(time.monotonic() - self._told_at, 6)}
        for kind, data in facts:
            self._acting.emit(kind, {**data, **since} if kind is EventKind.TOOL_RESULT else data)
        usage, limits = self._acting.usage, self._acting.agent.limits
        stop = self._meter.reached() or self._meter.no_more_calls()
        if stop is None and usage.turns + self._running >= limits.turns:
            stop = StopReason.TURNS
        if stop is not None:
            self.reached = self.reached or stop
            self.met.set()
            return stop
        self.asked, self._running = self.asked + 1, self._running + 1
        left = self._meter.tokens_left()
        return request if left is None else replace(request, max_tokens=min(request.max_tokens or left, left))

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
        self._fault = fault or self._fault

    def broken(self, what: str) -> None:
        """A part of ours did not serve it."""
        self._acting.emit(EventKind.NOTE, {"text": what})

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
        if isinstance(fault, ModelRefused) and self.answered and fault.status in _OF_THE_REQUEST:
            return None
        return fault if isinstance(fault, ModelFault) or fault.cause is not None else None
