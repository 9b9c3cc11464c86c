"""The real SDKs of OpenAI and Anthropic, unmodified, in an environment of their own, at a door of the gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from doors import Outside, door
from otherpython import python_with
from scripted import Script, said
from woodshed.gateway import server

CALLS = Path(__file__).parents[1] / "sdkcalls.py"
NEEDS = ("openai>=3.57,<4", "anthropic>=2.14,<3")
pytestmark = pytest.mark.slow
each = pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
both = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="module")
def sdks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has both SDKs. WOODSHED_TEST_SDKS names one that is there already."""
    return python_with(tmp_path_factory.mktemp("sdks"), *NEEDS, variable="WOODSHED_TEST_SDKS")


async def run(python: Path, scene: str, outside: Outside, dialect: str, streamed: bool) -> Any:
    """What the program printed."""
    words = [scene, outside.url, outside.door.key, dialect, *(["stream"] if streamed else [])]
    process = await asyncio.create_subprocess_exec(
        python, CALLS, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out)


def thought(answer: dict[str, Any], text: str) -> dict[str, Any]:
    answer["choices"][0]["message"]["reasoning_content"] = text
    return answer


def identified(answer: dict[str, Any], *idents: str) -> dict[str, Any]:
    for call, ident in zip(answer["choices"][0]["message"]["tool_calls"], idents, strict=True):
        call["id"] = ident
    return answer


def talk() -> list[dict[str, Any]]:
    """Two calls at once, one more, and the end."""
    two = said("look", ("bash", {"command": "ls"}), ("bash", {"command": "pwd"}))
    return [thought(identified(two, "c1", "c2"), "hm"),
            identified(said("", ("bash", {"command": "cat \u2603 'x'"})), "c3"), said("that is all")]


@each
@both
async def test_a_conversation_with_tools(sdks: Path, dialect: str, streamed: bool) -> None:
    """Three turns with tools: the SDK's own types hold, and the model was asked the same in every dialect."""
    async with door(*talk()) as outside:
        told = await run(sdks, "talk", outside, dialect, streamed)
        assert told == ["look/tool_calls/11", "/tool_calls/11", "that is all/stop/11"]
        assert len(outside.gate.passed) == len(outside.gate.answered) == 3
        sent = outside.script.requests
    assert [one["max_tokens"] for one in sent] == [200] * 3
    assert sent[0]["tools"][0]["function"]["parameters"]["required"] == ["command"]
    assert [(one["role"], one["content"]) for one in sent[2]["messages"]] == [
        ("system", "be brief"), ("user", "what is here?"), ("assistant", "look"), ("tool", "output of ls"),
        ("tool", "output of pwd"), ("assistant", ""), ("tool", "output of cat \u2603 'x'")]
    first = sent[2]["messages"][2]
    assert first["reasoning_content"] == "hm"
    assert [call["id"] for call in first["tool_calls"]] == ["c1", "c2"]
    assert sent[1]["messages"] == sent[2]["messages"][:5]


@both
async def test_a_conversation_by_response_ids(sdks: Path, streamed: bool) -> None:
    """previous_response_id leads to the same conversation as sending it."""
    async with door(*talk()) as outside:
        told = await run(sdks, "by_id", outside, "responses", streamed)
        assert told[-1] == "that is all/stop/11"
        roles = [one["role"] for one in outside.script.requests[2]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]


class Late(Script):
    """A model that takes longer than the SDK waits."""

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        await asyncio.sleep(1.2)
        return web.json_response(said("late"))


@each
@both
async def test_an_sdks_retries_are_one_call(sdks: Path, dialect: str, streamed: bool) -> None:
    """An SDK that lost patience asks again, and gets the answer of its first request: asked, charged, recorded once."""
    async with door(script=Late([])) as outside:
        assert await run(sdks, "patient", outside, dialect, streamed) == "late"
        assert len(outside.script.requests) == len(outside.gate.passed) == 1


class Limited(Script):
    """An endpoint that asks to slow down once."""

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        if len(self.requests) == 1:
            return web.Response(status=429, text="later", headers={"Retry-After": "1"})
        return web.json_response(said("now"))


@each
async def test_an_sdk_comes_again_when_it_is_told(sdks: Path, dialect: str) -> None:
    """429 with its Retry-After: the SDK waits, asks again, and is answered."""
    async with door(script=Limited([])) as outside:
        assert await run(sdks, "fails", outside, dialect, False) == "now"
        assert len(outside.script.requests) == 2


CODES = {"chat": {429: "rate_limit_exceeded", 502: "model_unreachable", 400: "context_length_exceeded",
                  401: "invalid_api_key", 403: "budget_exceeded"},
         "messages": {429: "rate_limit_error", 502: "api_error", 400: "invalid_request_error",
                      401: "authentication_error", 403: "permission_error"}}


@each
async def test_failures_are_the_sdks_own(sdks: Path, dialect: str) -> None:
    """Each failure is the class that programs catch, with the code they look at, and none is retried in vain."""
    codes = CODES.get(dialect, CODES["chat"])
    async with door((429, "slow"), (500, "boom"), (400, "maximum context length is 4"), turns=3) as outside:
        assert await run(sdks, "failures", outside, dialect, False) == [
            f"RateLimitError 429 {codes[429]}", f"InternalServerError 502 {codes[502]}",
            f"BadRequestError 400 {codes[400]}", f"PermissionDeniedError 403 {codes[403]}",
            f"AuthenticationError 401 {codes[401]}"]
        assert len(outside.script.requests) == 3


@each
async def test_a_failure_after_a_stream_began(sdks: Path, dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK raises it where its protocol has an error event, and tells of a response that failed."""
    monkeypatch.setattr(server, "PATIENCE_S", 0.01)
    monkeypatch.setattr(server, "ALIVE_S", 0.05)

    class Slow(Script):
        async def answer(self, request: Any) -> Any:
            await asyncio.sleep(0.3)
            return await super().answer(request)

    async with door(script=Slow([(500, "gone")])) as outside:
        told = await run(sdks, "once", outside, dialect, True)
        assert told == {"chat": "APIError None model_unreachable", "responses": "",
                        "messages": "APIStatusError 200 api_error"}[dialect]


async def test_counting_and_listing(sdks: Path) -> None:
    """count_tokens and both lists of models are what the SDKs expect."""
    async with door(said("hi")) as outside:
        count, anthropics, openais = await run(sdks, "counted", outside, "messages", False)
        assert count > 0
        assert anthropics == openais == ["scripted"]
