"""Responses and Messages at a door: what is refused by name, what is recorded, and what the door does for all alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

import spoken
from doors import door
from scripted import Script, said
from woodshed.gateway import memory, server
from woodshed.gateway.dialects import Asked, Refused, Stamp, messages, responses
from woodshed.gateway.estimate import CHARACTERS_EACH, estimate
from woodshed.gateway.memory import Memory
from woodshed.interfaces import ModelRequest, ModelResponse
from woodshed.model import EventKind, Message

HI = [Message(role="user", content="hello")]
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
BODIES: dict[str, dict[str, Any]] = {
    "chat": spoken.in_chat(HI), "responses": spoken.in_responses(HI), "messages": spoken.in_messages(HI)}
HEARS = {"chat": spoken.of_chat, "responses": spoken.of_responses, "messages": spoken.of_messages}
each = pytest.mark.parametrize("name", PATHS)
VERSION = {"anthropic-version": "2023-06-01"}


@each
async def test_a_call_is_answered_in_its_dialect(name: str) -> None:
    """A program's request becomes one call that is asked without a stream, and its answer is the dialect's own."""
    answer = said("look", ("bash", {"command": "ls"}))
    answer["choices"][0]["message"]["reasoning_content"] = "hm"
    async with door(answer) as outside:
        status, answer, headers = await outside.post(BODIES[name], path=PATHS[name])
        heard = HEARS[name](answer)
        assert (status, heard.content, heard.reasoning, heard.finish_reason) == (200, "look", "hm", "tool_calls")
        assert heard.tool_calls[0].arguments == {"command": "ls"}
        assert (heard.prompt_tokens, heard.completion_tokens) == (10, 1)
        named = {header.lower(): value for header, value in headers.items()}
        assert named["request-id" if name == "messages" else "x-request-id"].startswith("req_")
        [sent] = outside.script.requests
        assert sent["stream"] is False
        assert [one["content"] for one in sent["messages"]] == ["hello"]
        [result] = outside.of(EventKind.MODEL_RESULT)
        assert result["reasoning"] == "hm"


@each
async def test_a_retry_gets_the_same_answer(name: str) -> None:
    """In every dialect: the retry of an SDK is not charged, recorded or asked twice, and has the first answer's id."""
    async with door(said("one"), said("two")) as outside:
        first = (await outside.post(BODIES[name], path=PATHS[name]))[1]
        again = (await outside.post(BODIES[name], path=PATHS[name], headers={"x-stainless-retry-count": "1"}))[1]
        assert again == first
        other = (await outside.post(BODIES[name], path=PATHS[name]))[1]
        assert HEARS[name](other).content == "two"
        assert len(outside.script.requests) == len(outside.gate.passed) == 2


async def test_equal_bodies_of_two_dialects_are_two_calls() -> None:
    """A retry is of the same question in the same dialect."""
    async with door(said("one"), said("two")) as outside:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
        await outside.post(body, path=PATHS["chat"])
        _, answer, _ = await outside.post(body, path=PATHS["messages"], headers={"x-stainless-retry-count": "1"})
        assert answer["content"] == [{"type": "text", "text": "two"}]


async def eventually(true: Callable[[], object]) -> None:
    while not true():  # noqa: ASYNC110 (a fact that nobody tells us of)
        await asyncio.sleep(0.002)


class Held(Script):
    """A model that answers once it is let."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(answers)
        self.free, self.gone = asyncio.Event(), 0

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.gone += 1
            raise
        return web.json_response(self.answers[0])


@each
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_that_nobody_waits_for_is_cut_off(name: str, streamed: bool) -> None:
    """When a program is gone and does not come back, its call is ended at the endpoint, and the gate is told."""
    async with door(script=(held := Held(said("one"))), grace_s=0.02) as outside:
        asking = asyncio.create_task(outside.post({**BODIES[name], "stream": streamed}, path=PATHS[name]))
        await eventually(lambda: held.requests)
        asking.cancel()
        await eventually(lambda: outside.gate.faults)
        assert outside.gate.faults == [None]


@each
async def test_a_limited_endpoint_limits_the_program(name: str) -> None:
    """429 and its Retry-After pass to a program of any dialect, and its SDK is told to come again."""
    class Limited(Script):
        async def answer(self, request: Any) -> Any:
            return web.Response(status=429, text="later", headers={"Retry-After": "1234"})

    async with door(script=Limited([])) as outside:
        status, answer, headers = await outside.post({**BODIES[name], "stream": True}, path=PATHS[name])
        assert (status, headers["Retry-After"], headers["x-should-retry"]) == (429, "1234", "true")
        assert answer["error"]["type"] == "rate_limit_error"


KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 400: "invalid_request_error",
         502: "api_error", 413: "request_too_large"}


async def test_failures_have_anthropics_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each status has the type that Anthropic's SDK and its programs know, wherever the dialect can be told."""
    monkeypatch.setattr(server, "BODY_BYTES", 1_000)
    async with door((500, "boom"), (400, "maximum context length is 4"), said("hi"), turns=3) as outside:
        async def failure(body: Any = BODIES["messages"], path: str = "/v1/messages", **given: Any) -> tuple[int, str]:
            status, answer, _ = await outside.post(body, path=path, **given)
            assert answer["type"] == "error"
            assert answer["error"]["type"] == KINDS[status]
            return status, answer["error"]["message"]

        assert (await failure(key="x"))[0] == 401
        assert (await failure(path="/v1/files", headers=VERSION))[0] == 404
        assert (await failure(b"x" * 2_000))[0] == 413
        assert (await failure({"messages": []})) == (400, "messages must be a list with at least one message")
        assert (await failure())[0] == 502
        status, message = await failure()
        assert (status, message) == (400, "prompt is too long: shorten the messages")
        assert (await outside.post(BODIES["messages"], path="/v1/messages"))[0] == 200
        assert (await failure())[0] == 403


@pytest.mark.parametrize("name", ["responses", "messages"])
async def test_a_slow_stream_begins_early(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first events come before the answer, then signs of life; a failure is the protocol's last event."""
    monkeypatch.setattr(server, "PATIENCE_S", 0.01)
    monkeypatch.setattr(server, "ALIVE_S", 0.01)

    class Slow(Script):
        async def answer(self, request: Any) -> Any:
            await asyncio.sleep(0.08)
            return await super().answer(request)

    async with door(script=Slow([said("hi"), (500, "gone")])) as outside:
        whole = await outside.stream(PATHS[name], BODIES[name])
        broken = spoken.events(await outside.stream(PATHS[name], BODIES[name]))
    told = spoken.events(whole)
    if name == "messages":
        assert whole.count(b"event: ping") > 1
        assert spoken.of_messages(spoken.joined_messages(told)).content == "hi"
        assert broken[0]["message"]["usage"]["input_tokens"] == 0
        assert broken[-1] == {"type": "error", "error": {"type": "api_error",
                                                         "message": "the model's endpoint failed"}}
    else:
        assert whole.count(b": waiting") > 1
        assert spoken.of_responses({**told[-1]["response"], "output": spoken.joined_responses(told)}).content == "hi"
        assert broken[-1]["type"] == "response.failed"
        assert broken[-1]["response"]["error"]["message"] == "the model's endpoint failed"
        assert [event["sequence_number"] for event in broken] == [0, 1, 2]


MESSAGES_REFUSED: list[Any] = [
    {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [
        {"type": "image"}]}]}]},
    {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, *BODIES["messages"][
        "messages"]]},
    {"messages": [{"role": "assistant", "content": "The answer is"}]},
    {"messages": [{"role": "king", "content": "x"}]},
    {**BODIES["messages"], "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    {**BODIES["messages"], "mcp_servers": [{"name": "x"}]},
    {**BODIES["messages"], "tool_choice": {"type": "some"}},
    {**BODIES["messages"], "system": [{"type": "image"}]},
    {**BODIES["messages"], "max_tokens": 0},
]
RESPONSES_REFUSED: list[Any] = [
    {"input": []}, {"input": None}, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
    {"input": [{"type": "item_reference", "id": "x"}]}, {"input": [{"type": "computer_call_output"}]},
    {"input": [{"type": "reasoning", "encrypted_content": "x", "summary": []}]},
    {"input": "x", "background": True}, {"input": "x", "conversation": "c"}, {"input": "x", "prompt": {"id": "p"}},
    {"input": "x", "tools": [{"type": "web_search"}]}, {"input": "x", "tools": [{"type": "custom", "name": "p"}]},
    {"input": "x", "tool_choice": {"type": "allowed_tools"}}, {"input": "x", "previous_response_id": "resp_none"},
    {"input": "x", "previous_response_id": 4}, {"input": "x", "max_output_tokens": -1},
    {"input": "x", "text": {"format": 1}},
]


@pytest.mark.parametrize(("name", "number"), [
    *(("messages", n) for n in range(len(MESSAGES_REFUSED))),
    *(("responses", n) for n in range(len(RESPONSES_REFUSED)))])
async def test_what_is_not_served_is_refused_by_name(name: str, number: int) -> None:
    """Nothing that a program asks for is left out in silence: the error says what, and nothing is sent."""
    async with door(said("hi")) as outside:
        bodies = MESSAGES_REFUSED if name == "messages" else RESPONSES_REFUSED
        body = bodies[number]
        status, answer, headers = await outside.post(body, path=PATHS[name])
        assert (status, answer["error"]["type"], headers["x-should-retry"]) == (400, "invalid_request_error", "false")
        assert len(answer["error"]["message"]) > 20
        assert outside.script.requests == []
        assert outside.events == []


async def test_what_only_marks_a_place_is_recorded() -> None:
    """Anthropic's cache_control and is_error go no further than the record, and so do version and beta."""
    body = {"model": "claude", "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True},
                    {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}],
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"}, "top_k": 5,
            "stop_sequences": ["END"], "max_tokens": 99}
    async with door(said("hi")) as outside:
        path = "/v1/messages?beta=true"
        status, _, _ = await outside.post(body, path=path, headers=VERSION | {"anthropic-beta": "b"})
        assert status == 200
        [intent], [sent] = outside.of(EventKind.MODEL_CALL), outside.script.requests
    assert intent["asked"] == {
        "model": "claude", "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"},
        "top_k": 5, "anthropic-version": "2023-06-01", "anthropic-beta": "b", "is_error": ["messages[1].content[0]"],
        "cache_control": ["system[0]", "messages[1].content[1]", "tools[0]"]}
    assert [(one["role"], one["content"]) for one in sent["messages"]] == [
        ("system", "s"), ("assistant", ""), ("tool", "no"), ("user", "go on")]
    assert (sent["stop"], sent["max_tokens"], sent["top_k"]) == (["END"], 99, 5)
    assert "cache_control" not in json.dumps(sent)


async def test_tokens_are_counted_by_what_the_server_counted() -> None:
    """count_tokens charges nothing, sends nothing, and knows a token's length once a call was counted."""
    async with door(said("hi", tokens=300)) as outside:
        body = {"messages": [{"role": "user", "content": "word " * 200}]}
        path = "/v1/messages/count_tokens"
        status, first, _ = await outside.post(body, path=path, headers={"x-api-key": outside.door.key})
        assert (status, first) == (200, {"input_tokens": round(1008 / CHARACTERS_EACH)})
        assert not outside.script.requests
        assert not outside.events
        await outside.post(body, path="/v1/messages")
        assert (await outside.post(body, path=path))[1] == {"input_tokens": 300}
        assert (await outside.post({"messages": []}, path=path))[1]["type"] == "error"
        assert len(outside.gate.passed) == 1


async def test_models_are_listed_in_both_shapes() -> None:
    """A program that names Anthropic's version gets Anthropic's list."""
    async with door(said("hi")) as outside:
        key = {"x-api-key": outside.door.key}
        async with outside.session.get(f"{outside.url}/v1/models", headers=key | VERSION) as listed:
            assert [one["type"] for one in (await listed.json())["data"]] == ["model"]
        async with outside.session.get(f"{outside.url}/v1/models/claude-x", headers=key | VERSION) as one:
            assert (await one.json())["id"] == "claude-x"
        async with outside.session.get(f"{outside.url}/v1/models", headers=key) as listed:
            assert (await listed.json())["object"] == "list"


async def test_a_response_goes_on_from_an_earlier_one() -> None:
    """previous_response_id stands for the conversation that it ended, without its instructions; retries share ids."""
    async with door(said("one", ("f", {"a": 1})), said("two"), said("three")) as outside:
        async def ask(**body: Any) -> str:
            status, answer, _ = await outside.post(body, path="/v1/responses")
            assert status == 200
            return str(answer["id"])

        first = await ask(input="hi", instructions="be brief", store=False)
        second = await ask(previous_response_id=first, instructions="be long",
                           input=[{"type": "function_call_output", "call_id": "same", "output": "42"}])
        await ask(previous_response_id=second, input="and?")
        third = outside.script.requests[2]["messages"]
    assert [(one["role"], one["content"]) for one in outside.script.requests[1]["messages"]] == [
        ("system", "be long"), ("user", "hi"), ("assistant", "one"), ("tool", "42")]
    assert [(one["role"], one["content"]) for one in third] == [
        ("user", "hi"), ("assistant", "one"), ("tool", "42"), ("assistant", "two"), ("user", "and?")]
    assert json.loads(third[1]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten first, by number and by length, and are refused with a remedy."""
    monkeypatch.setattr(memory, "MOST", 3)
    monkeypatch.setattr(memory, "MOST_CHARACTERS", 100)
    kept = Memory()
    for number in range(5):
        kept.keep(f"resp_{number}", [Message(role="user", content="x" * 30)])
    assert kept.find("resp_4")[0].content == "x" * 30
    with pytest.raises(Refused, match=r"resp_1 not found.*Send the conversation itself"):
        kept.find("resp_1")
    kept.keep("long", [Message(role="user", content="x" * 90)])
    assert kept.find("long")
    with pytest.raises(Refused):
        kept.find("resp_4")


def test_a_response_repeats_its_request() -> None:
    """What SDKs expect an answer to say of its request is in it; the rest has the protocol's defaults."""
    body = {"input": "x", "instructions": "i", "temperature": 0.5, "metadata": {"a": "b"}, "tool_choice": "required",
            "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}], "max_output_tokens": 7}
    asked = responses.read(body, {})
    told = responses.answer(ModelResponse("hi"), asked, Stamp("1", 0, "m"))
    assert {name: told[name] for name in body if name != "input"} == {
        name: value for name, value in body.items() if name != "input"}
    assert (told["parallel_tool_calls"], told["truncation"], told["store"]) == (True, "disabled", False)
    assert asked.request.tools[0].strict


def test_estimates_grow_with_what_is_said() -> None:
    """More words are more tokens, and nothing is none."""
    counts = [estimate(ModelRequest((Message(role="user", content="x" * size),)), None) for size in (0, 10, 1000)]
    assert counts == sorted(counts)
    assert counts[0] > 0


def test_a_stop_for_calls_is_anthropics() -> None:
    """Each reason of an answer's end has Anthropic's word."""
    def stop(**given: Any) -> str:
        told = messages.answer(ModelResponse("x", **given), Asked(ModelRequest(())), Stamp("1", 0, "m"))
        return str(told["stop_reason"])

    assert [stop(finish_reason=one) for one in ("stop", "length", "tool_calls", "content_filter", "unparsed")] == [
        "end_turn", "max_tokens", "tool_use", "refusal", "end_turn"]


# -- doors of several attempts -----------------------------------------------------------------------------------------


async def test_a_key_opens_its_own_attempt_alone() -> None:
    """A key is no key at another attempt's door, in whichever header it comes; at its own it is."""
    async with door(said("a"), said("b")) as one, door(said("c")) as other:
        for name, value in (("x-api-key", "{key}"), ("Authorization", "Bearer {key}")):
            for key, status in ((other.door.key, 401), (one.door.key, 200)):
                given = {"Authorization": "none", name: value.replace("{key}", key)}
                assert (await one.post(headers=given))[0] == status
        assert (len(one.gate.passed), len(other.gate.passed)) == (2, 0)


async def test_closing_a_door_ends_what_runs() -> None:
    """A call in flight when its attempt ends is cut off at the endpoint, and its program waits no longer."""
    held = Held(said("hi"))
    async with door(script=held) as outside:
        asking = asyncio.create_task(outside.post())
        await eventually(lambda: held.requests)
        await outside.door.close()
        try:  # refused, or cut off: whichever came first
            assert (await asking)[0] == 401
        except aiohttp.ClientError:
            assert asking.done()
        assert outside.gate.faults == [None]
        held.free.set()
