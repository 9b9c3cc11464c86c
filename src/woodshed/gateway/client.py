"""Gateway: makes model clients, each bound to one attempt and recording every call in that attempt's events."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import aiohttp

from woodshed.errors import ModelFault, StoreFault
from woodshed.gateway import completions, wire
from woodshed.gateway.call import Patience, Road, Weights, call, captured_by
from woodshed.gateway.capture import level
from woodshed.gateway.capture.probe import Capturing
from woodshed.gateway.pool import Pools, Stay
from woodshed.gateway.recall import recalled
from woodshed.interfaces import Emit, Gate, Interceptor, ModelClient, ModelDoor, ModelRequest, ModelResponse
from woodshed.model import Answer, EventKind, Message, ModelSpec
from woodshed.model.drift import Course
from woodshed.model.rollout import CaptureLevel
from woodshed.model.tokens import Packer, Put

Kept = Callable[[], Awaitable[None]]
"""Makes what was emitted durable."""


class Gateway:
    """One per process and event loop. ``close`` ends its connections; a session given from outside stays open."""

    def __init__(
        self,
        interceptors: Sequence[Interceptor] = (),
        *,
        session: aiohttp.ClientSession | None = None,
        patience: Patience | None = None,
        concurrent: int | None = None,
    ) -> None:
        """At most ``concurrent`` calls go to one endpoint at once; None: as many as there are."""
        self._interceptors, self._patience = tuple(interceptors), patience or Patience()
        self._session, self._owned = session, session is None
        self._pools = Pools(concurrent=concurrent)

    def client(
        self, spec: ModelSpec, emit: Emit, *, seed: int = 0, kept: Kept | None = None, past: Sequence[Answer] = (),
        settled: Kept | None = None, put: Put | None = None, begun: int = 0, weights: Weights | None = None,
    ) -> ModelClient:
        """A client for one attempt: its calls go to ``spec`` and into ``emit``; call n is sampled with seed + n.

        ``kept``, where given, makes what was emitted durable: it is awaited before a call leaves and after its answer
        came. ``settled`` is awaited in its place only after, before anybody is given the answer. The first calls are
        answered from ``past``, without being sent or recorded once more. Long lists of tokens are blobs that ``put``
        keeps; without it they stand in the events. ``begun`` counts calls before all of these. ``weights`` is asked
        which version the endpoint has, for servers that do not tell it: when a call leaves, and when its answer came.
        """
        return _Client(self, spec, _Log(spec, emit, kept, settled, Packer(put), begun), seed + begun, past,
                       weights)

    async def probe(self, spec: ModelSpec) -> dict[str, Capturing | ModelFault]:
        """What each endpoint of ``spec`` tells of tokens, by address, found out by a question of one token.

        It is asked once; calls rely on what was found. A fault: it could not be asked, and will be at the first call.
        """
        found: dict[str, Capturing | ModelFault] = {}
        for url in spec.addresses:
            try:
                found[url] = await captured_by(self._pools.endpoint(url), spec.at(url), self.road())
            except ModelFault as fault:
                found[url] = fault
        return found

    def serve(self, model: ModelClient, gate: Gate, name: str) -> ModelDoor:
        """See :data:`woodshed.interfaces.Serve`. Raises nothing; must be called where the event loop runs."""
        from woodshed.gateway.server import Door  # the server's half of the HTTP library, which few runs need

        return Door(model, gate, name)

    async def close(self) -> None:
        """End the connections. Idempotent."""
        if self._owned and self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def road(self) -> Road:
        """What calls share now; opens the session on first use, inside the running loop."""
        if self._session is None:
            # The engine's concurrency bounds the calls; a second bound here would only hide a queue.
            # No cookies: what an endpoint sets for one attempt is not another's.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0),
                                                  cookie_jar=aiohttp.DummyCookieJar())
        return Road(self._session, self._interceptors, self._patience, self._pools)


class _Client:
    """A ModelClient that writes down intent and result of every call. Calls may run at the same time."""

    def __init__(
        self, gateway: Gateway, spec: ModelSpec, log: _Log, seed: int, past: Sequence[Answer], weights: Weights | None
    ) -> None:
        self._gateway, self._spec, self._log, self._seed = gateway, spec, log, seed
        self._calls, self._past, self._stay, self._weights = 0, deque(past), Stay(), weights

    async def call(self, request: ModelRequest) -> ModelResponse:
        seed = self._seed + self._calls
        self._calls += 1
        if self._spec.reasoning == "drop":
            request = replace(request, messages=[
                message.model_copy(update={"reasoning": ""}) if message.reasoning else message
                for message in request.messages])
        known = recalled(self._past.popleft()) if self._past else None
        return await call(request, self._spec, self._gateway.road(), _Entry(self._log), seed=seed, known=known,
                          stay=self._stay, weights=self._weights)


class _Log:
    """Writes calls as events. Of the messages only those that differ from the call before stand in an intent.

    ``kept`` counts the messages that are equal to the previous call's from the start, so a log grows with the
    conversation and not with its square; ``tools`` is None where they are the previous call's.
    """

    def __init__(
        self, spec: ModelSpec, emit: Emit, kept: Kept | None, settled: Kept | None, packer: Packer, begun: int
    ) -> None:
        self._spec, self.emit, self.kept, self.settled, self._packer = spec, emit, kept, settled, packer
        self._count = begun
        self._messages: list[Message] = []
        self._tools: list[dict[str, Any]] | None = None
        self._prompt = ""
        self._course = Course()

    def intent(self, request: ModelRequest, *, written: bool = True) -> str:
        """Write that ``request`` leaves; the name of the call. Not ``written``, it stands in an earlier record."""
        messages, tools = list(request.messages), [wire.tool_json(tool) for tool in request.tools]
        kept = next((index for index, (old, new) in enumerate(zip(self._messages, messages, strict=False))
                     if old is not new and old != new), min(len(self._messages), len(messages)))
        self._count += 1
        name = f"m{self._count:05d}"
        prompt, self._prompt = completions.told(request, self._prompt)
        if written:
            self.emit(EventKind.MODEL_CALL, {
                "call": name, "model": self._spec.name, "kept": kept,
                "messages": [wire.message_json(m) for m in messages[kept:]],
                "tools": None if tools == self._tools else tools, "sampling": wire.effective(request, self._spec),
                "max_tokens": request.max_tokens, **({"asked": dict(request.asked)} if request.asked else {}),
                **prompt, **_of(request.parent),
            })
        self._messages, self._tools = messages, tools
        return name


    def tokens(self, call: str, response: ModelResponse, parent: str | None) -> dict[str, Any]:
        """What an answer's event holds besides the answer: see ``docs/events.md``."""
        if (tokens := response.tokens) is None:
            return {}
        wrong, written, told = list(response.flaws), dict[str, Any](), dict[str, Any]()
        try:
            written = self._packer.packed(call, tokens, parent=parent)
        except StoreFault as fault:
            wrong.append(f"they could not be kept ({fault})")
        if self._spec.captures:  # first, where they are counted: store/captures.py
            told["capture_level"] = (CaptureLevel.TEXT if wrong else level(tokens)).value
        if wrong:
            told["flaws"] = wrong
        elif self._spec.captures and (drift := self._course.of(tokens, parent)) is not None:  # counted as well
            told["drift"] = drift.value
        if written:
            told["tokens"] = written
        if response.sampling is not None:
            told["sampling"] = dict(response.sampling)
        return told


class _Entry:
    """The Witness of one call."""

    def __init__(self, log: _Log) -> None:
        self._log, self._call = log, ""
        self._parent: str | None = None
        self._answered = False

    def sending(self, request: ModelRequest) -> None:
        self._call, self._parent = self._log.intent(request), request.parent

    def recalled(self, request: ModelRequest) -> None:
        self._call = self._log.intent(request, written=False)

    async def kept(self) -> None:
        if self._log.kept is not None:
            await self._log.kept()
        elif self._answered and self._log.settled is not None:
            await self._log.settled()

    def failed(self, fault: ModelFault, again_in_s: float | None) -> None:
        then = "no further try" if again_in_s is None else f"trying again in {again_in_s:.1f} s"
        kind = type(fault).__name__
        # Of the last try the note also says, for programs, that this call will never have an answer.
        over = {"call": self._call, "fault": kind, "message": str(fault)} if again_in_s is None else {}
        self._log.emit(EventKind.NOTE, {"text": f"model call failed, {then}: {kind}: {fault}", **over})

    def received(self, response: ModelResponse) -> None:
        told = self._log.tokens(self._call, response, self._parent)
        self._log.emit(EventKind.MODEL_RESULT, {
            "call": self._call, **told, "content": response.content,
            "tool_calls": [c.model_dump(mode="json") for c in response.tool_calls],
            "finish_reason": response.finish_reason, "seconds": round(response.seconds, 6),
            "usage": {"prompt_tokens": response.prompt_tokens, "completion_tokens": response.completion_tokens},
            **({"reasoning": response.reasoning} if response.reasoning else {}),
            **({"endpoint": response.endpoint} if response.endpoint else {}), **_of(self._parent),
        })
        if wrong := told.get("flaws"):
            self._log.emit(EventKind.NOTE, {"text": f"the tokens of model call {self._call} cannot be trained on: "
                                                    f"{'; '.join(wrong)}"})
        self._answered = True


def _of(parent: str | None) -> dict[str, str]:
    """Where an event belongs to a sub-task: the id of the call that delegated it."""
    return {} if parent is None else {"parent": parent}
