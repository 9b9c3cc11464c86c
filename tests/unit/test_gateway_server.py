"""The gateway's server: keys, shapes, failures, retries, limits, and what hostile programs get."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from doors import HELLO, door
from scripted import Script, bash, said, served
from woodshed.errors import HarnessFault
from woodshed.gateway import connections, server
from woodshed.gateway.call import Patience
from woodshed.gateway.client import Gateway
from woodshed.interfaces import ModelRequest, ModelResponse
from woodshed.model import EventKind, Message, ModelSpec, Sampling

TOOL = {"type": "function", "function": {"name": "bash", "description": "runs", "parameters": {"type": "object"}}}


async def eventually(true: Any) -> None:
    while not true():  # noqa: ASYNC110 (a fact that nobody tells us of)
        await asyncio.sleep(0.005)


async def test_a_call_is_answered_and_recorded() -> None:
    """A program's request becomes one recorded call of the attempt's model, whatever model it names."""
    async with door(said("hi")) as outside:
        status, answer, _ = await outside.post({**HELLO, "temperature": 0.5, "user": "me"})
        assert status == 200
        assert answer["object"] == "chat.completion"
        assert answer["model"] == "scripted"
        assert answer["choices"] == [{"index": 0, "message": {"role": "assistant", "content": "hi", "refusal": None},
                                      "logprobs": None, "finish_reason": "stop"}]
        assert answer["usage"] == {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
        [intent], [result] = outside.of(EventKind.MODEL_CALL), outside.of(EventKind.MODEL_RESULT)
        assert intent["asked"] == {"model": "whatever", "temperature": 0.5, "user": "me"}
        assert intent["sampling"] == {"max_tokens": 256, "temperature": 0.5}
        assert result["call"] == intent["call"]
        [sent] = outside.script.requests
        assert (sent["model"], sent["stream"], sent["temperature"], "user" in sent) == ("scripted", False, 0.5, False)


async def test_what_the_agents_config_says_wins() -> None:
    """Sampling that the agent declares is not a program's to change; what is left open is."""
    async with door(said("hi"), sampling=Sampling(temperature=1.0, max_tokens=100)) as outside:
        asked = {**HELLO, "temperature": 0.0, "top_p": 0.5, "max_completion_tokens": 5_000, "seed": 7,
                 "tool_choice": "none", "logit_bias": {"1": 100}}
        await outside.post(asked)
        [sent] = outside.script.requests
        assert sent["temperature"] == 1.0
        assert (sent["top_p"], sent["max_tokens"], sent["seed"]) == (0.5, 100, 7)
        assert "tool_choice" not in sent, "it has no meaning without tools"
        assert "logit_bias" not in sent
        [intent] = outside.of(EventKind.MODEL_CALL)
        assert intent["asked"]["temperature"] == 0.0
        assert intent["sampling"]["temperature"] == 1.0


async def test_a_stream_has_the_shapes_of_the_protocol() -> None:
    """Role, text, each call's name and arguments, the reason, the usage where asked, and the end."""
    async with door(said("look", ("bash", {"command": "ls"}), ("bash", '{"command": "p'))) as outside:
        *chunks, done = await outside.events_of(
            {**HELLO, "tools": [TOOL], "stream": True, "stream_options": {"include_usage": True}})
        assert done == "[DONE]"
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        *parts, end, usage = chunks
        deltas = [part["choices"][0]["delta"] for part in parts]
        assert deltas[:2] == [{"role": "assistant", "content": ""}, {"content": "look"}]
        assert deltas[2]["tool_calls"] == [{"index": 0, "id": "same", "type": "function",
                                            "function": {"name": "bash", "arguments": ""}}]
        assert json.loads(deltas[3]["tool_calls"][0]["function"]["arguments"]) == {"command": "ls"}
        assert deltas[5]["tool_calls"] == [{"index": 1, "function": {"arguments": '{"command": "p'}}]
        assert end["choices"] == [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]
        assert usage["choices"] == []
        assert usage["usage"]["total_tokens"] == 11
        assert outside.script.requests[0]["stream"] is False


async def test_a_slow_stream_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the model thinks comments are sent; a failure then comes as an event."""
    monkeypatch.setattr(server, "PATIENCE_S", 0.02)
    monkeypatch.setattr(server, "ALIVE_S", 0.02)

    class Slow(Script):
        async def answer(self, request: Any) -> Any:
            await asyncio.sleep(0.15)
            return await super().answer(request)

    async with door(script=Slow([said("hi"), (500, "gone")])) as outside:
        events = await outside.events_of({**HELLO, "stream": True})
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert events[1] == events[2] == ": waiting for the model"
        assert events[-1] == "[DONE]"
        events = await outside.events_of({**HELLO, "stream": True})
        assert events[1].startswith(":")
        assert events[-1]["error"]["code"] == "model_unreachable"


async def test_only_the_key_opens() -> None:
    """No key, a wrong one and a dead one get 401, and nothing is sent; models are listed for the right one."""
    async with door(said("hi")) as outside:
        for key in ("", "x", outside.door.key[:-1], outside.door.key + "x", "\u00e9"):
            status, answer, _ = await outside.post(key=key.encode().decode("latin-1"))
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        other = {"Authorization": f"Basic {outside.door.key}"}
        assert (await outside.post(headers=other))[0] == 401
        for headers in ({"Authorization": f"bearer {outside.door.key}"}, {"x-api-key": outside.door.key}):
            async with outside.session.get(f"{outside.url}/v1/models", headers=headers) as listed:
                assert (await listed.json())["data"][0]["id"] == "scripted"
        assert outside.script.requests == []
        assert (await outside.post())[0] == 200
        await outside.door.close()
        async with aiohttp.ClientSession() as outside.session:  # the connections of the other one are cut
            status, answer, _ = await outside.post()
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert len(outside.script.requests) == 1


async def test_keys_are_long_and_stand_in_no_record() -> None:
    """Each door has 256 random bits of its own, which no event repeats, whatever a program does with them."""
    async with door(said("hi")) as one, door(said("hi")) as other:
        assert one.door.key != other.door.key
        assert len(one.door.key) >= 43
        assert (await one.post(key=other.door.key))[0] == 401
        await one.post()
        assert one.door.key not in json.dumps([data for _, data in one.events])


@pytest.mark.parametrize(("upstream", "status", "code", "again"), [
    ((429, "slow down"), 429, "rate_limit_exceeded", "true"),
    ((500, "boom at /secret/place"), 502, "model_unreachable", "false"),
    ((400, "maximum context length is 4096"), 400, "context_length_exceeded", "false"),
    ((400, "no such option"), 400, "model_refused", "false"),
    ((401, "bad key"), 400, "model_refused", "false"),
    ((200, "not json"), 502, "model_unreachable", "false"),
])
async def test_failures_of_the_endpoint(upstream: tuple[int, str], status: int, code: str, again: str) -> None:
    """Each becomes the protocol's error, says whether asking again may help, and tells nothing of the endpoint."""
    async with door(upstream) as outside:
        got, answer, headers = await outside.post()
        assert (got, answer["error"]["code"], headers["x-should-retry"]) == (status, code, again)
        assert "127.0.0.1" not in json.dumps(answer)
        assert "secret" not in json.dumps(answer)
        assert len(outside.gate.faults) == 1


async def test_retry_after_is_passed_on() -> None:
    """What the endpoint asks for in seconds, the program is asked for."""
    class Limited(Script):
        async def answer(self, request: Any) -> Any:
            return web.Response(status=429, text="later", headers={"Retry-After": "1234"})

    async with door(script=Limited([])) as outside:
        status, _, headers = await outside.post()
        assert (status, headers["Retry-After"]) == (429, "1234")


async def test_a_limit_of_the_attempt_holds() -> None:
    """Beyond its turns a program gets an error that no SDK retries, and nothing is sent."""
    async with door(said("hi"), turns=2) as outside:
        assert [(await outside.post())[0] for _ in range(4)] == [200, 200, 403, 403]
        _, answer, headers = await outside.post()
        assert answer["error"]["code"] == "budget_exceeded"
        assert headers["x-should-retry"] == "false"
        assert len(outside.script.requests) == 2


async def test_a_retry_replays_the_answer() -> None:
    """A request that says it is one gets the answer that is there, uncharged; an equal one that does not is new."""
    async with door(said("one"), said("two"), said("three")) as outside:
        first = (await outside.post(headers={"x-stainless-retry-count": "0"}))[1]
        again = (await outside.post(headers={"x-stainless-retry-count": "1"}))[1]
        assert again["choices"] == first["choices"]
        assert (await outside.post())[1]["choices"][0]["message"]["content"] == "two"
        named = {"Idempotency-Key": "k"}
        texts = [(await outside.post(headers=named))[1]["choices"][0]["message"]["content"] for _ in range(2)]
        assert texts == ["three", "three"]
        assert len(outside.script.requests) == len(outside.of(EventKind.MODEL_RESULT)) == len(outside.gate.passed) == 3


async def test_a_retry_of_a_failure_is_a_new_call() -> None:
    """No failure is given twice, and none brings back what an equal request was answered before."""
    async with door(said("old"), (500, "x"), said("new")) as outside:
        assert (await outside.post())[0] == 200
        assert (await outside.post())[0] == 502
        status, answer, _ = await outside.post(headers={"x-stainless-retry-count": "1"})
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "new")


class Held(Script):
    """A server that answers when it is let."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        super().__init__(answers)
        self.free = asyncio.Event()

    async def answer(self, request: Any) -> Any:
        self.requests.append(await request.json())
        await self.free.wait()
        return web.json_response(self.answers[min(len(self.requests), len(self.answers)) - 1])


async def test_a_cut_request_is_taken_up_again() -> None:
    """A program whose connection broke asks once more, and gets the answer of the call that ran on."""
    async with door(script=(held := Held(said("one"), said("two")))) as outside:
        first = asyncio.create_task(outside.post())
        await eventually(lambda: held.requests)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        again = asyncio.create_task(outside.post())
        await asyncio.sleep(0.05)
        held.free.set()
        status, answer, _ = await again
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "one")
        assert len(held.requests) == len(outside.of(EventKind.MODEL_CALL)) == 1


async def test_equal_requests_at_once_are_two() -> None:
    """Who asks twice at once and stays for both answers, gets two."""
    async with door(script=(held := Held(said("one"), said("two")))) as outside:
        both = [asyncio.create_task(outside.post()) for _ in range(2)]
        await eventually(lambda: len(held.requests) == 2)
        held.free.set()
        texts = {(await one)[1]["choices"][0]["message"]["content"] for one in both}
        assert len(held.requests) == 2
        assert texts <= {"one", "two"}


async def test_a_call_nobody_waits_for_is_cut_off() -> None:
    """When the program is gone and does not come back, the endpoint stops working for it."""
    async with door(script=(held := Held(said("one"))), grace_s=0.05) as outside:
        first = asyncio.create_task(outside.post())
        await eventually(lambda: held.requests)
        first.cancel()
        await eventually(lambda: outside.gate.faults)
        assert outside.gate.faults == [None]
        assert outside.of(EventKind.MODEL_RESULT) == []


async def test_too_many_at_once_are_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt has so many calls at once and no more."""
    monkeypatch.setattr(server, "MOST_RUNNING", 2)
    async with door(script=(held := Held(said("one")))) as outside:
        some = [asyncio.create_task(outside.post({**HELLO, "user": str(n)})) for n in range(2)]
        await eventually(lambda: len(held.requests) == 2)
        status, answer, headers = await outside.post({**HELLO, "user": "third"})
        assert (status, answer["error"]["code"], headers["Retry-After"]) == (429, "too_many_calls", "1")
        held.free.set()
        assert [(await one)[0] for one in some] == [200, 200]


class Broken:
    """An interceptor that breaks."""

    async def before(self, request: ModelRequest) -> ModelRequest:
        raise ValueError("secret words")

    async def after(self, request: ModelRequest, response: ModelResponse) -> ModelResponse:
        return response


async def test_an_interceptor_sees_programs_too() -> None:
    """What blocks a call of ours blocks one of theirs, and its words stay inside."""
    async with door(said("hi"), interceptors=(Broken(),)) as outside:
        status, answer, _ = await outside.post()
        assert status == 500
        assert "secret" not in json.dumps(answer)
        assert isinstance(outside.gate.faults[0], HarnessFault)
        assert outside.script.requests == []


BAD: list[Any] = [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 200_000, b'{"messages": NaN}', b'{"a":' + b"9" * 5_000 + b"}",
    {}, {"messages": []}, {"messages": "hi"}, {"messages": [1]}, {"messages": [{"role": "king", "content": ""}]},
    {"messages": [{"role": "tool", "content": "x"}]}, {"messages": [{"role": "user", "content": 1}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
    {**HELLO, "n": 2}, {**HELLO, "tools": [{"type": "web_search"}]}, {**HELLO, "tools": {}}, {**HELLO, "stop": [1]},
    {**HELLO, "max_tokens": -1}, {**HELLO, "max_tokens": True}, {**HELLO, "functions": []},
    {**HELLO, "user": "x" * 70_000},
    {"messages": [{"role": "assistant", "tool_calls": [{"id": 1, "function": {"name": "x", "arguments": "{}"}}]}]},
]


@pytest.mark.parametrize("number", range(len(BAD)))
async def test_what_is_no_request_is_refused(number: int) -> None:
    """A body that is none gets an error of the protocol that names the field, and nothing is sent."""
    async with door(said("hi")) as outside:
        status, answer, _ = await outside.post(BAD[number])
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        assert outside.script.requests == []
        assert outside.events == []


async def test_sizes_and_forms_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large a body, a packed one, other methods and paths, and heads without end are refused."""
    monkeypatch.setattr(server, "BODY_BYTES", 1_000)
    async with door(said("hi")) as outside:
        assert (await outside.post(b"x" * 2_000))[0] == 413
        assert (await outside.post(headers={"Content-Encoding": "gzip"}))[0] == 415
        assert (await outside.post(path="/v1/chat/completions/../../x"))[0] == 404
        assert (await outside.post(path="/v1/embeddings"))[0] == 404
        key = {"Authorization": f"Bearer {outside.door.key}"}
        async with outside.session.delete(f"{outside.url}/v1/chat/completions", headers=key) as answer:
            assert answer.status == 405
        async with outside.session.get(outside.url, headers={"x": "y" * 20_000}) as answer:
            assert answer.status == 400


async def test_a_connection_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever dribbles a head, or a body, does not hold a connection for ever."""
    monkeypatch.setattr(connections, "IDLE_S", 0.1)
    monkeypatch.setattr(server, "BODY_S", 0.1)
    async with door(said("hi")) as outside:
        port = int(outside.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/mo")
        assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
                     b"Authorization: Bearer " + outside.door.key.encode() + b"\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize(("key", "told"), [("", b"200 OK"), ("x", b"401 Unauthorized")], ids=["right", "wrong"])
async def test_a_body_that_waits_to_be_asked_for_is(key: str, told: bytes) -> None:
    """Who sends a head alone and expects to be told to go on is told, with the right key; then it is answered."""
    body = json.dumps(HELLO).encode()
    async with door(said("hi")) as outside:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(outside.url.rpartition(":")[2]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n"
                     b"Authorization: Bearer %s\r\n\r\n" % (len(body), (outside.door.key + key).encode()))
        first = await reader.readline()
        if not key:
            assert first == b"HTTP/1.1 100 Continue\r\n"
            assert await reader.readline() == b"\r\n"
            writer.write(body)
            first = await reader.readline()
        assert told in first
        writer.close()


async def test_bytes_that_are_no_http_do_no_harm() -> None:
    """Whatever arrives is answered or dropped, and the door goes on serving."""
    async with door(said("hi")) as outside:
        port = int(outside.url.rpartition(":")[2])
        for junk in (b"\0" * 500, b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n",
                     b"POST /\r\n" + b"a:b\r\n" * 500,
                     b"GET /v1/models HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(junk)
            writer.write_eof()
            assert b"200" not in (await reader.read())[:20]
            writer.close()
        assert (await outside.post())[0] == 200


async def test_calls_and_results_of_history_reach_the_model() -> None:
    """Tool calls and results, parts of text, and the newer word for a system prompt are understood."""
    history = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "out"},
    ]
    async with door(bash("pwd")) as outside:
        _, answer, _ = await outside.post({"messages": history, "tools": [TOOL]})
        [sent] = outside.script.requests
        assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "tool"]
        assert sent["messages"][1]["content"] == "a\nb"
        assert sent["messages"][2]["tool_calls"][0]["id"] == sent["messages"][3]["tool_call_id"] == "c1"
        assert sent["tools"] == [TOOL]
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        assert answer["choices"][0]["message"]["content"] is None


async def test_a_client_that_goes_away_in_the_middle_harms_nobody() -> None:
    """A connection reset while an answer is written leaves the door open."""
    async with door(said("x" * 3_000_000), said("hi")) as outside:
        async with aiohttp.ClientSession() as session, session.post(
                f"{outside.url}/v1/chat/completions", json=HELLO,
                headers={"Authorization": f"Bearer {outside.door.key}"}) as answer:
            await answer.content.read(10)
        assert (await outside.post({**HELLO, "user": "other"}))[1]["choices"][0]["message"]["content"] == "hi"


async def test_an_endpoint_has_so_many_calls_at_a_time() -> None:
    """Beyond its bound calls wait their turn, those of other endpoints do not."""
    held = Held(said("one"))
    async with served(held) as busy, served(Script([said("free")])) as free:
        gateway = Gateway(patience=Patience(tries=1), concurrent=2)
        request = ModelRequest((Message(role="user", content="hi"),))
        clients = [gateway.client(ModelSpec(name="m", base_url=url), lambda *_: None) for url in (busy, free)]
        calls = [asyncio.create_task(clients[0].call(request)) for _ in range(4)]
        await eventually(lambda: len(held.requests) == 2)
        assert (await clients[1].call(request)).content == "free"
        assert len(held.requests) == 2
        held.free.set()
        assert [one.content for one in await asyncio.gather(*calls)] == ["one"] * 4
        await gateway.close()
