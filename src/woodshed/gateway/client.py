"""Gateway: makes model clients, each bound to one attempt and recording every call in that attempt's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from woodshed.errors import ModelFault
from woodshed.gateway import wire
from woodshed.gateway.call import Patience, Road, call
from woodshed.interfaces import Emit, Interceptor, ModelClient, ModelRequest, ModelResponse
from woodshed.model import EventKind, Message, ModelSpec


class Gateway:
    """One per process and event loop. ``close`` ends its connections; a session given from outside stays open."""

    def __init__(
        self,
        interceptors: Sequence[Interceptor] = (),
        *,
        session: aiohttp.ClientSession | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._interceptors, self._patience = tuple(interceptors), patience or Patience()
        self._session, self._owned = session, session is None

    def client(self, spec: ModelSpec, emit: Emit, *, seed: int = 0) -> ModelClient:
        """A client for one attempt: its calls go to ``spec`` and into ``emit``; call n is sampled with seed + n."""
        return _Client(self, spec, emit, seed)

    async def close(self) -> None:
        """End the connections. Idempotent."""
        if self._owned and self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def road(self) -> Road:
        """What calls share now; opens the session on first use, inside the running loop."""
        if self._session is None:
            # The engine's concurrency bounds the calls; a second bound here would only hide a queue.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return Road(self._session, self._interceptors, self._patience)


class _Client:
    """A ModelClient that writes down intent and result of every call."""

    def __init__(self, gateway: Gateway, spec: ModelSpec, emit: Emit, seed: int) -> None:
        self._gateway, self._spec, self._emit, self._seed = gateway, spec, emit, seed
        self._log, self._calls = _Log(spec, emit), 0

    async def call(self, request: ModelRequest) -> ModelResponse:
        seed = self._seed + self._calls
        self._calls += 1
        return await call(request, self._spec, self._gateway.road(), self._log, seed=seed)


class _Log:
    """Writes calls as events. Of the messages only those that differ from the call before stand in an intent.

    ``kept`` counts the messages that are equal to the previous call's from the start, so a log grows with the
    conversation and not with its square; ``tools`` is None where they are the previous call's.
    """

    def __init__(self, spec: ModelSpec, emit: Emit) -> None:
        self._spec, self._emit = spec, emit
        self._count = 0
        self._messages: list[Message] = []
        self._tools: list[dict[str, Any]] | None = None

    def sending(self, request: ModelRequest) -> None:
        messages, tools = list(request.messages), [wire.tool_json(tool) for tool in request.tools]
        kept = next((i for i, (old, new) in enumerate(zip(self._messages, messages, strict=False)) if old != new),
                    min(len(self._messages), len(messages)))
        sampling = self._spec.sampling.model_dump(mode="json", exclude_none=True)
        self._count += 1
        self._record(EventKind.MODEL_CALL, {
            "model": self._spec.name, "kept": kept, "messages": [wire.message_json(m) for m in messages[kept:]],
            "tools": None if tools == self._tools else tools, "sampling": sampling, "max_tokens": request.max_tokens,
        })
        self._messages, self._tools = messages, tools

    def failed(self, fault: ModelFault, again_in_s: float | None) -> None:
        then = "no further try" if again_in_s is None else f"trying again in {again_in_s:.1f} s"
        self._emit(EventKind.NOTE, {"text": f"model call failed, {then}: {type(fault).__name__}: {fault}"})

    def received(self, response: ModelResponse) -> None:
        self._record(EventKind.MODEL_RESULT, {
            "content": response.content, "tool_calls": [c.model_dump(mode="json") for c in response.tool_calls],
            "finish_reason": response.finish_reason, "seconds": round(response.seconds, 6),
            "usage": {"prompt_tokens": response.prompt_tokens, "completion_tokens": response.completion_tokens},
        })

    def _record(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        self._emit(kind, {"call": f"m{self._count:05d}", **data})
