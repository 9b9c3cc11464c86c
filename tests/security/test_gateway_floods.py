"""What a program floods its door with costs the worker little: a connection, and no memory or time of the others."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from doors import Outside, door
from scripted import said
from woodshed.gateway import server

POST = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
ENOUGH = 24_000_000
"""Far above what the kernel and the library hold of a connection that nobody reads any more."""


async def poured(outside: Outside, head: str, piece: bytes) -> int:
    """Bytes that went into one connection until it took no more."""
    host, port = outside.url.removeprefix("http://").split(":")
    end = socket.socket()
    end.setblocking(False)
    loop, sent = asyncio.get_running_loop(), 0
    with end:
        await loop.sock_connect(end, (host, int(port)))
        await loop.sock_sendall(end, head.replace("{key}", outside.door.key).encode())
        while sent < ENOUGH:
            try:
                async with asyncio.timeout(0.5):
                    await loop.sock_sendall(end, piece)
            except (ConnectionError, TimeoutError):
                break
            sent += len(piece)
    return sent


@pytest.mark.parametrize(("head", "piece"), [
    ("GET /", b"y" * 100_000),
    ("GET /v1/models HTTP/1.1\r\nX: ", b"y" * 100_000),
    ("GET /v1/models HTTP/1.1\r\n", b"".join(b"X-%d: %s\r\n" % (number, b"y" * 4000) for number in range(25))),
    (f"{POST}Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 16_000),
    ("", b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n" * 2_500),
], ids=["line", "header", "headers", "trailers", "pipelined"])
async def test_what_is_no_body_is_not_taken_without_end(head: str, piece: bytes) -> None:
    """Heads that never end, and requests that nobody waits for the answers of, are cut off or left in the kernel."""
    async with door(said("hi")) as outside:
        assert await poured(outside, head, piece) < ENOUGH
        assert (await outside.post())[0] == 200  # the door serves on


@pytest.mark.filterwarnings("ignore:Sending a large body")  # of the client here: that is what is tried
async def test_a_body_is_taken_up_to_its_bound() -> None:
    """The control of the test above: what a body may hold is taken, and answered."""
    async with door(said("hi")) as outside:
        large = {"messages": [{"role": "user", "content": "y" * 6_000_000}]}
        assert (await outside.post(large))[0] == 200


@pytest.mark.parametrize("more", [
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 5\r\nContent-Length: 6\r\n",
    "Content-Length: +5\r\n", "Transfer-Encoding: chunked, identity\r\n", "Transfer-Encoding: xchunked\r\n",
    "Content-Length : 5\r\n",
], ids=["both", "two", "sign", "order", "unknown", "space"])
async def test_a_body_whose_end_is_in_doubt_is_refused(more: str) -> None:
    """No request can be hidden in another: where its length can be read in two ways, it is none."""
    async with door(said("hi")) as outside:
        host, port = outside.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        hidden = POST.replace("{key}", outside.door.key) + "Content-Length: 2\r\n\r\n{}"
        writer.write(f"{POST.replace('{key}', outside.door.key)}{more}\r\n0\r\n\r\n{hidden}".encode())
        writer.write_eof()
        told = await reader.read()
        writer.close()
        assert b" 200 " not in told
        assert told.count(b"HTTP/1.1 ") <= 1
        assert outside.gate.passed == []


def crowd(path: str, number: int) -> Mapping[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    use = {"type": "tool_use", "id": "c", "name": "bash", "input": {}}
    item = {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"}
    said_ = {"role": "user", "content": "hi"}
    bodies: Mapping[str, Mapping[str, Any]] = {
        "/v1/chat/completions": {"messages": [said_, {"role": "assistant", "tool_calls": [call] * number}, said_]},
        "/v1/messages": {"max_tokens": 9, "messages": [said_, {"role": "assistant", "content": [use] * number}, said_]},
        "/v1/responses": {"input": [said_, *[item] * number]},
    }
    return bodies[path]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_a_body_of_very_many_calls_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a million would hold up all attempts of a worker for ten seconds; few are refused by a lower bound alone."""
    monkeypatch.setattr(server, "LARGE_BYTES", 1_000)
    async with door(said("hi")) as outside:
        for most, status in ((200, 413), (2_000, 200)):
            monkeypatch.setattr(server, "MOST_THINGS", most)
            found, told, _ = await outside.post(crowd(path, 300), path=path)
            assert found == status, json.dumps(told)[:300]


async def test_who_reads_no_answer_holds_up_nobody() -> None:
    """Answers that nobody reads wait in their connections: others are served, and the door closes with all of them."""
    loop = asyncio.get_running_loop()
    async with door(said("y" * 2_000_000)) as outside:
        host, port = outside.url.removeprefix("http://").split(":")
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
        head = f"{POST.replace('{key}', outside.door.key)}Content-Length: {len(body)}\r\n\r\n".encode()
        with ExitStack() as stack:
            silent = [stack.enter_context(socket.socket()) for _ in range(4)]
            for end in silent:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                end.setblocking(False)
                await loop.sock_connect(end, (host, int(port)))
                await loop.sock_sendall(end, head + body)
            while len(outside.gate.answered) < len(silent):  # noqa: ASYNC110 (a fact that nobody tells us of)
                await asyncio.sleep(0.01)
            status, told, _ = await outside.post()
            assert (status, len(told["choices"][0]["message"]["content"])) == (200, 2_000_000)
            await outside.door.close()
            for end in silent:
                with suppress(ConnectionError):
                    while await loop.sock_recv(end, 1 << 20):
                        pass
        assert (await outside.post())[0] == 401
