"""The choke point against a real HTTP server that misbehaves in every way a model server does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from woodshed.errors import (
    Cause,
    ContextExceeded,
    HarnessFault,
    ModelFault,
    ModelGarbled,
    ModelRateLimited,
    ModelRefused,
    ModelUnreachable,
)
from woodshed.gateway.call import Patience
from woodshed.gateway.client import Gateway
from woodshed.interfaces import ModelRequest, ModelResponse, ToolSpec
from woodshed.model import EventKind, Message, ModelSpec, Sampling, ToolCall

KEY = "sk-very-secret-value"
ASK = ModelRequest(messages=(Message(role="user", content="hello"),))
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def good(content: str = "hi", **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": content, **message}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


def says(*answers: tuple[int, Any] | tuple[int, Any, Mapping[str, str]]) -> Answer:
    """A server that gives these answers in turn and then the last one for ever."""
    left = list(answers)

    async def answer(request: web.Request) -> web.StreamResponse:
        status, content, *headers = left.pop(0) if len(left) > 1 else left[0]
        payload = content if isinstance(content, bytes) else json.dumps(content).encode()
        return web.Response(status=status, body=payload, headers=headers[0] if headers else None)

    return answer


@dataclass
class World:
    """A server, a gateway with a clock that only counts, and the events of one attempt."""

    spec: ModelSpec
    gateway: Gateway
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    events: list[tuple[EventKind, Mapping[str, Any]]] = field(default_factory=list)

    async def ask(self, request: ModelRequest = ASK, **changed: Any) -> ModelResponse:
        spec = self.spec.model_copy(update=changed)
        return await self.gateway.client(spec, self.emit, seed=11).call(request)

    def emit(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        self.events.append((kind, json.loads(json.dumps(data))))

    def kinds(self) -> list[EventKind]:
        return [kind for kind, _ in self.events]


@asynccontextmanager
async def world(answer: Answer, *interceptors: Any, tries: int = 4) -> AsyncIterator[World]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    seen = World(ModelSpec(name="m", base_url="http://unset"), Gateway(), waits=waits)

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.requests.append(await request.json())
        seen.headers.append(dict(request.headers))
        return await answer(request)

    app = web.Application(client_max_size=100_000_000)
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    patience = Patience(tries=tries, sleep=sleep, now=lambda: 1_000_000_000.0, chance=lambda: 1.0)
    seen.gateway = Gateway(interceptors, patience=patience)
    seen.spec = ModelSpec(name="m", base_url=f"http://127.0.0.1:{port}/v1", timeout_s=5)
    try:
        yield seen
    finally:
        await seen.gateway.close()
        await runner.cleanup()


async def test_answer_and_usage_come_back_and_are_recorded() -> None:
    """A good answer gives content and tokens, and stands in the events as intent and result."""
    async with world(says((200, good()))) as seen:
        response = await seen.ask()
    assert (response.content, response.prompt_tokens, response.completion_tokens) == ("hi", 7, 2)
    assert seen.kinds() == [EventKind.MODEL_CALL, EventKind.MODEL_RESULT]
    (_, intent), (_, result) = seen.events
    assert intent["call"] == result["call"]
    assert intent["messages"] == [{"role": "user", "content": "hello"}]
    assert result["usage"] == {"prompt_tokens": 7, "completion_tokens": 2}


async def test_request_carries_sampling_tools_and_a_seed_of_its_own() -> None:
    """What the spec and the request declare is what is sent; call n has seed + n, unless the spec fixes one."""
    tool = ToolSpec("bash", "run", {"type": "object", "properties": {}})
    request = replace(ASK, tools=(tool,), stop=("END",), max_tokens=5)
    sampling = Sampling(temperature=0.5, top_p=0.9, top_k=3, max_tokens=9)
    async with world(says((200, good()))) as seen:
        client = seen.gateway.client(seen.spec.model_copy(update={"sampling": sampling}), seen.emit, seed=11)
        await client.call(request)
        await client.call(ASK)
        await seen.ask(sampling=Sampling(seed=99))
    first, second, third = seen.requests
    assert first["tools"][0]["function"]["name"] == "bash"
    assert (first["temperature"], first["top_p"], first["top_k"], first["max_tokens"]) == (0.5, 0.9, 3, 5)
    assert first["stop"] == ["END"]
    assert (first["seed"], second["seed"], third["seed"]) == (11, 12, 99)
    assert second["max_tokens"] == 9
    assert "tools" not in second


async def test_log_grows_with_the_conversation_not_with_its_square() -> None:
    """An intent holds only the messages that differ from the call before; with ``kept`` the request can be rebuilt."""
    talk = [Message(role="user", content=str(number)) for number in range(4)]
    async with world(says((200, good()))) as seen:
        client = seen.gateway.client(seen.spec, seen.emit)
        for end in (2, 4):
            await client.call(ModelRequest(messages=talk[:end]))
        await client.call(ModelRequest(messages=[talk[0], talk[3]]))
    intents = [data for kind, data in seen.events if kind is EventKind.MODEL_CALL]
    rebuilt: list[Any] = []
    for intent, sent in zip(intents, seen.requests, strict=True):
        rebuilt = rebuilt[: intent["kept"]] + intent["messages"]
        assert rebuilt == sent["messages"]
    assert [len(intent["messages"]) for intent in intents] == [2, 2, 1]


@pytest.mark.parametrize(("header", "least"), [("7", 7.0), ("0.5", 0.5), ("Sun, 09 Sep 2001 01:47:10 GMT", 30.0)])
async def test_retry_after_is_a_floor(header: str, least: float) -> None:
    """After a 429 the next try waits at least as long as the server says, in seconds or as a date."""
    async with world(says((429, {}, {"Retry-After": header}), (200, good()))) as seen:
        assert (await seen.ask()).content == "hi"
    assert len(seen.waits) == 1
    assert seen.waits[0] >= least


async def test_retry_after_beyond_patience_ends_at_once() -> None:
    """A wait longer than we have patience for is given up, and the fault carries it."""
    async with world(says((429, {}, {"Retry-After": "86400"}))) as seen:
        with pytest.raises(ModelRateLimited) as caught:
            await seen.ask()
    assert caught.value.retry_after_s == 86400
    assert (len(seen.requests), seen.waits) == (1, [])


async def test_overload_is_retried_with_growing_waits_and_then_given_up() -> None:
    """Backoff doubles, tries are bounded, each failure is a note, and no result is recorded."""
    async with world(says((503, "busy"))) as seen:
        with pytest.raises(ModelRateLimited):
            await seen.ask()
    assert len(seen.requests) == 4
    assert seen.waits == [0.5, 1.0, 2.0]
    assert seen.kinds() == [EventKind.MODEL_CALL, *[EventKind.NOTE] * 4]


@pytest.mark.parametrize("status", [500, 502, 504, 408])
async def test_server_errors_are_unreachable_and_mend_by_retry(status: int) -> None:
    """A 5xx is worth another try."""
    async with world(says((status, b"<html>oops"), (200, good("better")))) as seen:
        assert (await seen.ask()).content == "better"


@pytest.mark.parametrize(("status", "remedy"), [(401, "WOODSHED_TEST_KEY"), (403, "WOODSHED_TEST_KEY"),
                                                (404, "base_url"), (400, "model's name"), (422, "sampling")])
async def test_refusals_are_not_retried_and_name_the_remedy(
    status: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 4xx ends the call at once; the message says what to do and never holds the key, even if the server does."""
    monkeypatch.setenv("WOODSHED_TEST_KEY", KEY)
    async with world(says((status, f"no, {KEY} is wrong".encode()))) as seen:
        with pytest.raises(ModelRefused, match=remedy) as caught:
            await seen.ask(key_variable="WOODSHED_TEST_KEY")
    assert len(seen.requests) == 1
    assert seen.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in str(caught.value)
    assert KEY not in json.dumps([data for _, data in seen.events])
    assert not isinstance(caught.value, ContextExceeded)


@pytest.mark.parametrize("said", [
    {"error": {"code": "context_length_exceeded", "message": "too long"}},
    {"error": {"type": "exceed_context_size_error", "message": "the request exceeds the available context size"}},
    {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"},
    {"error": {"message": "prompt is too long: 250000 tokens > 200000 maximum"}},
])
async def test_full_context_has_a_class_of_its_own(said: Any) -> None:
    """The ways servers say that a conversation no longer fits become ContextExceeded."""
    async with world(says((400, said))) as seen:
        with pytest.raises(ContextExceeded):
            await seen.ask()
    assert len(seen.requests) == 1


@pytest.mark.parametrize("payload", [
    b"", b"<html>gateway</html>", b"{\"choices\": [", b"[]", b"null", b"{}", b"{\"choices\": []}",
    b"{\"choices\": [3]}", b"{\"choices\": [{}]}", b"{\"choices\": [{\"message\": \"x\"}]}",
    b"{\"choices\": [{\"message\": {\"content\": 5}}]}", b"{\"choices\": [{\"message\": {\"tool_calls\": {}}}]}",
    b"{\"choices\": [{\"message\": {\"tool_calls\": [\"x\"]}}]}", b"\xff\xfe\x00", b"[" * 100_000,
])
async def test_garbage_is_garbled(payload: bytes) -> None:
    """An answer that is not the protocol is ModelGarbled after the tries are used up, whatever it is."""
    async with world(says((200, payload)), tries=2) as seen:
        with pytest.raises(ModelGarbled):
            await seen.ask()
    assert len(seen.requests) == 2


async def test_badly_written_tool_calls_are_the_models_affair() -> None:
    """Broken arguments come back as calls with an error and its place, never as a fault."""
    calls = [{"id": "a", "function": {"name": "bash", "arguments": "{\"command\": \"ls\" oops}"}},
             {"id": None, "function": {"name": None, "arguments": "[1]"}},
             {"id": "c", "function": {"name": "bash", "arguments": {"command": "as an object"}}},
             {"id": "d", "function": {"name": "bash", "arguments": "[" * 50_000}},
             {"id": "e", "function": {"name": "bash", "arguments": "{\"n\": 1e999}"}},
             {"id": "f", "function": {"name": "bash", "arguments": "{\"command\": \"\\ud800\"}"}}]
    async with world(says((200, good(tool_calls=calls)))) as seen:
        response = await seen.ask()
    first, second, third, *rest = response.tool_calls
    assert first.error is not None
    assert "column 18" in first.error
    assert (second.name, second.error) == ("", "a JSON array where an object {...} is needed")
    assert third.arguments == {"command": "as an object"}
    assert all(call.error for call in rest)


@pytest.mark.parametrize(("message", "content"), [
    ('Failed to parse input at pos 12: <tool_call>\n{"oops', '<tool_call>\n{"oops'),
    ("The model produced output that does not match the expected peg-native format", ""),
], ids=["told", "untold"])
async def test_what_a_server_cannot_read_is_the_models_affair(message: str, content: str) -> None:
    """llama.cpp fails with 500 when the model breaks its grammar: that is an answer, not a fault of the endpoint."""
    async with world(says((500, {"error": {"code": 500, "message": message, "type": "server_error"}}))) as seen:
        response = await seen.ask()
    assert len(seen.requests) == 1
    assert response.finish_reason == "unparsed"
    assert response.content == content


async def test_null_content_and_missing_usage_are_accepted() -> None:
    """Servers leave out content beside tool calls, and some report no usage."""
    async with world(says((200, {"choices": [{"message": {"content": None}}]}))) as seen:
        response = await seen.ask()
    assert (response.content, response.prompt_tokens, response.finish_reason) == ("", 0, "stop")


async def test_nothing_listening_is_unreachable(unused_tcp_port: int) -> None:
    """A refused connection is ModelUnreachable, names the address, and is the model's cause."""
    async with world(says((200, good()))) as seen:
        with pytest.raises(ModelUnreachable, match=f":{unused_tcp_port}/v1") as caught:
            await seen.ask(base_url=f"http://127.0.0.1:{unused_tcp_port}/v1")
    assert caught.value.cause is Cause.MODEL_API
    assert len(seen.waits) == 3


@pytest.mark.parametrize("url", ["no address", "ftp://127.0.0.1/v1", "http://", "127.0.0.1:80"])
async def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    """A wrong base_url is told as such, without retries."""
    async with world(says((200, good()))) as seen:
        with pytest.raises(ModelFault, match="base_url"):
            await seen.ask(base_url=url)
    assert seen.waits == []


async def test_hanging_server_is_unreachable_after_the_timeout() -> None:
    """A server that never answers costs timeout_s a try and ends as ModelUnreachable."""

    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    async with world(hang, tries=2) as seen:
        with pytest.raises(ModelUnreachable, match=r"within 0\.05 s"):
            await seen.ask(timeout_s=0.05)
    assert len(seen.requests) == 2


async def test_connection_cut_mid_body_is_retried() -> None:
    """Half an answer is no answer."""
    cut = [True]

    async def answer(request: web.Request) -> web.StreamResponse:
        if not cut.pop() if cut else True:
            return web.json_response(good("whole"))
        response = web.StreamResponse(headers={"Content-Length": "5000"})
        await response.prepare(request)
        await response.write(b"{\"choices\": [")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with world(answer) as seen:
        assert (await seen.ask()).content == "whole"
    assert len(seen.requests) == 2


async def test_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer beyond the bound ends as a fault, not in memory."""
    monkeypatch.setattr("woodshed.gateway.call.ANSWER_BYTES", 1_000_000)
    async with world(says((200, b"x" * 3_000_000)), tries=1) as seen:
        with pytest.raises(ModelUnreachable, match="longer than"):
            await seen.ask()


async def test_redirects_do_not_carry_the_key_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect is refused and named; nothing is sent to its target."""
    monkeypatch.setenv("WOODSHED_TEST_KEY", KEY)
    async with world(says((307, b"", {"Location": "http://127.0.0.1:1/v1/chat/completions"}))) as seen:
        with pytest.raises(ModelRefused, match=r"redirects to http://127\.0\.0\.1:1"):
            await seen.ask(key_variable="WOODSHED_TEST_KEY")


@pytest.mark.parametrize("value", [None, "  ", "two\nlines", "schlüssel"])
async def test_unusable_keys_are_named_by_variable_only(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or impossible key names its variable, never its value, and nothing is sent."""
    monkeypatch.delenv("WOODSHED_TEST_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("WOODSHED_TEST_KEY", value)
    async with world(says((200, good()))) as seen:
        with pytest.raises(ModelRefused, match="WOODSHED_TEST_KEY") as caught:
            await seen.ask(key_variable="WOODSHED_TEST_KEY")
    assert seen.requests == []
    assert not (value or "").strip() or (value or "") not in str(caught.value)


class Adds:
    """An interceptor that marks requests and answers with its letter."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    async def before(self, request: ModelRequest) -> ModelRequest:
        return replace(request, messages=[m.model_copy(update={"content": m.content + self.letter})
                                          for m in request.messages])

    async def after(self, request: ModelRequest, response: ModelResponse) -> ModelResponse:
        return replace(response, content=response.content + self.letter)


class Breaks(Adds):
    """An interceptor that fails at one side, telling a secret."""

    async def before(self, request: ModelRequest) -> ModelRequest:
        if self.letter == "before":
            raise RuntimeError(KEY)
        return None if self.letter == "nothing" else request  # type: ignore[return-value]  # the fault under test

    async def after(self, request: ModelRequest, response: ModelResponse) -> ModelResponse:
        if self.letter == "after":
            raise ValueError(KEY)
        return response


async def test_interceptors_wrap_the_call_and_the_log_holds_what_left() -> None:
    """Requests pass in order, answers in reverse; events hold what truly left and what truly came."""
    async with world(says((200, good("hi"))), Adds("a"), Adds("b")) as seen:
        assert (await seen.ask()).content == "hiba"
    assert seen.requests[0]["messages"][0]["content"] == "helloab"
    assert seen.events[0][1]["messages"][0]["content"] == "helloab"
    assert seen.events[1][1]["content"] == "hi"


@pytest.mark.parametrize(("where", "sent"), [("before", 0), ("nothing", 0), ("after", 1)])
async def test_a_broken_interceptor_blocks_the_call(where: str, sent: int) -> None:
    """It fails closed as a HarnessFault that holds no text of the error; before the call nothing leaves."""
    async with world(says((200, good())), Breaks(where)) as seen:
        with pytest.raises(HarnessFault, match="Breaks failed") as caught:
            await seen.ask()
    assert len(seen.requests) == sent
    assert KEY not in str(caught.value)


async def test_history_is_sent_in_the_shape_servers_parse() -> None:
    """Calls that were no JSON go back as ``{}``, lone surrogates as question marks: no server chokes on history."""
    broken = ToolCall(id="t0001c001", name="bash", raw="{oops", error="not valid JSON")
    talk = (Message(role="assistant", content="\ud800", tool_calls=(broken,)),
            Message(role="tool", content="no", call="t0001c001"))
    async with world(says((200, good()))) as seen:
        await seen.ask(ModelRequest(messages=talk))
    assistant, tool = seen.requests[0]["messages"]
    assert assistant["content"] == "?"
    assert assistant["tool_calls"][0]["function"]["arguments"] == "{}"
    assert tool["tool_call_id"] == "t0001c001"


async def test_calls_run_side_by_side() -> None:
    """One gateway serves many attempts at once; their answers are not mixed up."""

    async def echo(request: web.Request) -> web.StreamResponse:
        return web.json_response(good((await request.json())["messages"][0]["content"]))

    async with world(echo) as seen:
        asks = [seen.ask(ModelRequest(messages=(Message(role="user", content=str(n)),))) for n in range(50)]
        answers = await asyncio.gather(*asks)
    assert [answer.content for answer in answers] == [str(n) for n in range(50)]
