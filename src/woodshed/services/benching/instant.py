"""An upstream that answers at once, in the shape of vLLM's answers: what is measured is everybody else's time.

usage: python -m woodshed.services.benching.instant [TOGETHER HOLD_S]

It prints its port. With TOGETHER, answers wait until so many requests are there, and HOLD_S more; but for those to a
question that is no conversation, by which a gateway finds out what an endpoint tells. A prompt has an id
for every four bytes of its body, taken from one long list from a place of the conversation's own: what goes on in the
same conversation goes on in the same ids.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import cast

import uvloop

COMPLETION_TOKENS, VOCABULARY = 128, 150_000
_LONG = 60_000
_IDS = ",".join(str(100_000 + number * 7919 % 50_000) for number in range(_LONG)).encode()
_EACH = 7
"""Bytes of an id and its comma in ``_IDS``."""
_CONVERSATION = re.compile(rb"conversation (\d{6})")
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_SAID = "word " * (COMPLETION_TOKENS - 1)
_CHOICE = json.dumps([{
    "index": 0, "message": {"role": "assistant", "content": _SAID, "reasoning": None, "tool_calls": []},
    "logprobs": {"content": [
        {"token": "word ", "logprob": -0.125 - number / 1024, "bytes": [119, 111, 114, 100, 32], "top_logprobs": []}
        for number in range(COMPLETION_TOKENS)]},
    "finish_reason": "stop", "stop_reason": None,
    "token_ids": [1_000 + number for number in range(COMPLETION_TOKENS)]}]).encode()
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_BODY = (b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"bench","choices":%b,"usage":{'
         b'"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d},"prompt_token_ids":[%b]}')
_MODELS = json.dumps({"object": "list", "data": [{"id": "bench", "object": "model", "owned_by": "vllm"}]}).encode()


def answer(body: bytes) -> bytes:
    """What a request is answered, its head included."""
    count = max(1, len(body) // 4)
    found = _CONVERSATION.search(body)
    begin = int(found[1]) * 13 % (_LONG - count) if found and count < _LONG else 0
    ids = _IDS[_EACH * begin:_EACH * (begin + count) - 1]
    told = _BODY % (_CHOICE, count, COMPLETION_TOKENS, count + COMPLETION_TOKENS, ids)
    return _HEAD % len(told) + told


class _Held:
    """Answers that wait for one another."""

    def __init__(self, together: int, hold_s: float) -> None:
        self._together, self._hold_s, self._here = together, hold_s, 0
        self._free = asyncio.Event()

    async def wait(self) -> None:
        """Until all are here, and a while more."""
        self._here += 1
        if self._here >= self._together:
            asyncio.get_running_loop().call_later(self._hold_s, self._free.set)
        await self._free.wait()


class _Connection(asyncio.Protocol):
    def __init__(self, held: _Held | None) -> None:
        self._held, self._buffer = held, b""
        self._transport: asyncio.Transport | None = None
        self._later = set[asyncio.Task[None]]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is none by its class

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._buffer, 0, end)
            size = end + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < size:
                return
            head, body, self._buffer = self._buffer[:end], self._buffer[end + 4:size], self._buffer[size:]
            told = _HEAD % len(_MODELS) + _MODELS if head.startswith(b"GET ") else answer(body)
            self._answer(told, waits=_CONVERSATION.search(body) is not None)

    def _answer(self, told: bytes, *, waits: bool) -> None:
        assert self._transport is not None
        if self._held is None or not waits:
            self._transport.write(told)
        else:
            task = asyncio.get_running_loop().create_task(self._after(told))
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    async def _after(self, told: bytes) -> None:
        assert self._held is not None
        assert self._transport is not None
        await self._held.wait()
        self._transport.write(told)


async def serve(together: int = 0, hold_s: float = 0.0) -> None:
    """Serve until this process ends."""
    held = _Held(together, hold_s) if together else None
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(held), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(*(int(word) for word in sys.argv[1:])))
