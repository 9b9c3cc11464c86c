"""OpenEnv's wire over a real socket: whole attempts, its error codes, and connections that are dropped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kit import leftovers
from servekit import KEY, Talks, blank_home, talking
from woodshed.errors import Conflict, EnvironmentFault, Missing
from woodshed.model.acted import Act, Begin
from woodshed.trainers.client import Client

AUTH = {"Authorization": f"Bearer {KEY}"}
WRITE = {"tool": "bash", "arguments": {"command": "echo 'hello world' > hello.txt"}}


async def said(socket: aiohttp.ClientWebSocketResponse, message: Any) -> dict[str, Any]:
    await (socket.send_str(message) if isinstance(message, str) else socket.send_json(message))
    return dict(await socket.receive_json())


async def code(socket: aiohttp.ClientWebSocketResponse, message: Any) -> str:
    answer = await said(socket, message)
    assert answer["type"] == "error", answer
    return str(answer["data"]["code"])


async def test_the_wire(tmp_path: Path) -> None:
    """Steps and a reward; mistakes have OpenEnv's codes; nothing without the key; a dropped socket frees its place."""
    with blank_home(tmp_path / "home") as home:
        async with talking(home) as talks:
            for name in ("health", "metadata", "schema"):
                assert (await talks.call("GET", f"/openenv/{name}", key=None))[0] == 200
            for headers in ({}, {"Authorization": "Bearer another"}):
                with pytest.raises(aiohttp.WSServerHandshakeError):
                    await talks.session.ws_connect(f"{talks.url}/openenv/ws", headers=headers)
            await _a_whole_attempt(talks)
            await _mistakes(talks)
            await _dropped(talks)
            await _over_http(talks)
        attempts = [one for run in home.store.runs() for one in home.store.attempts(run.id)]
        assert all(one.outcome is not None for one in attempts)
    assert leftovers(tmp_path / "home") == []


async def _a_whole_attempt(talks: Talks) -> None:
    async with talks.session.ws_connect(f"{talks.url}/openenv/ws", headers=AUTH) as socket:
        reset = await said(socket, {"type": "reset", "data": {
            "task": "first-steps/write-file", "seed": 3, "episode_id": "mine"}})
        assert reset["type"] == "observation"
        assert (reset["data"]["reward"], reset["data"]["done"]) == (None, False)
        assert "hello" in reset["data"]["observation"]["instruction"]
        step = await said(socket, {"type": "step", "data": WRITE})
        assert step["data"]["observation"]["exit_code"] == 0
        state = (await said(socket, {"type": "state"}))["data"]
        assert (state["episode_id"], state["step_count"], state["done"]) == ("mine", 1, False)
        end = (await said(socket, {"type": "step", "data": {"end": True}}))["data"]
        assert (end["reward"], end["done"], end["observation"]["ended"]["valid"]) == (1.0, True, True)
        assert await code(socket, {"type": "step", "data": WRITE}) == "SESSION_ERROR"
        await socket.send_json({"type": "close"})
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE


async def _mistakes(talks: Talks) -> None:
    async with talks.session.ws_connect(f"{talks.url}/openenv/ws", headers=AUTH) as socket:
        assert await code(socket, "{") == "INVALID_JSON"
        assert await code(socket, "[]") == "VALIDATION_ERROR"
        assert await code(socket, {"type": "mcp"}) == "UNKNOWN_TYPE"
        assert await code(socket, {"type": "step", "data": WRITE}) == "SESSION_ERROR"
        for data in ({}, {"task": "../secrets"}, {"task": "nothing"}, {"task": 3}, {"task": "x", "other": 1}):
            assert await code(socket, {"type": "reset", "data": data}) == "VALIDATION_ERROR"


async def _dropped(talks: Talks) -> None:
    """Four may be open; one that is dropped in the middle of a call makes room for the next."""
    opened = [await talks.session.ws_connect(f"{talks.url}/openenv/ws", headers=AUTH) for _ in range(4)]
    reset = {"type": "reset", "data": {"task": "first-steps/write-file"}}
    for socket in opened:
        assert (await said(socket, reset))["type"] == "observation"
    async with talks.session.ws_connect(f"{talks.url}/openenv/ws", headers=AUTH) as fifth:
        assert await code(fifth, reset) == "CAPACITY_REACHED"
        await opened[0].send_json({"type": "step", "data": {"tool": "bash", "arguments": {"command": "sleep 600"}}})
        connection = opened[0]._conn
        assert connection is not None
        assert connection.transport is not None
        connection.transport.abort()
        waiting = {"task": "first-steps/write-file", "wait_s": 60}  # less than the call would take
        assert (await said(fifth, {"type": "reset", "data": waiting}))["type"] == "observation"
    await asyncio.gather(*(socket.close() for socket in opened))


async def _over_http(talks: Talks) -> None:
    """The same by requests, with the client that trainers use."""
    client = Client(talks.url, KEY, patience_s=0)

    def act() -> None:
        begun = client.begin(Begin(task="first-steps/write-file", wait_s=600))
        assert client.act(begun.id, Act.model_validate(WRITE)).exit_code == 0
        assert client.finish(begun.id).reward == 1.0
        client.leave(begun.id)
        with pytest.raises(Conflict):
            client.act(begun.id, Act.model_validate(WRITE))
        with pytest.raises(Missing):
            client.begin(Begin(task="nothing"))
        with pytest.raises(EnvironmentFault):
            Client("http://127.0.0.1:9", KEY, patience_s=0).begin(Begin(task="first-steps/write-file"))

    await asyncio.to_thread(act)
