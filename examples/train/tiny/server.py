"""The server: chat completions, completions and tokenize as vLLM speaks them, and weights that change as it runs.

Source of the shapes: vLLM 0.32, ``entrypoints/openai`` (``return_token_ids``, ``logprobs``) and ``entrypoints/serve``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from aiohttp import web

from tiny.engine import Asked, Engine, Given
from tiny.network import Network, Shape
from tiny.template import answer, prompt
from tiny.text import Vocabulary

MOST = 64
"""Ids of an answer where nobody says."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (None, 1), "top_k": (None, 0, -1), "min_p": (None, 0), "repetition_penalty": (None, 1), "n": (None, 1),
    "stream": (None, False)}
"""What else may be asked for, as it changes nothing: logprobs are those of the whole distribution."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """What one address answers. ``name`` is the model's."""

    def __init__(self, engine: Engine, words: Vocabulary, name: str = "tiny") -> None:
        self.engine, self.words, self.name = engine, words, name

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[_faults])
        app.add_routes([
            web.get("/health", self._health), web.get("/v1/models", self._models),
            web.post("/v1/chat/completions", self._chat), web.post("/v1/completions", self._completion),
            web.post("/tokenize", self._tokenize), web.post("/load_weights", self._load)])
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{
            "id": self.name, "object": "model", "owned_by": "vllm",
            "max_model_len": self.engine.network.shape.context}]})

    async def _chat(self, request: web.Request) -> web.Response:
        body = await _object(request)
        tools = body.get("tools") or ()
        asked = self._asked(body, prompt(self.words, body["messages"], tools))
        given = await asyncio.wrap_future(self.engine.ask(asked))
        said = answer(self.words, given.ids, tools)
        called = "tool_calls" if said.get("tool_calls") and given.reason == "stop" else given.reason
        return self._told(body, asked, given, "chat.completion", {"message": said, "finish_reason": called})

    async def _completion(self, request: web.Request) -> web.Response:
        body = await _object(request)
        text = body["prompt"]
        asked = self._asked(body, self.words.encode(text) if isinstance(text, str) else text)
        given = await asyncio.wrap_future(self.engine.ask(asked))
        return self._told(body, asked, given, "text_completion",
                          {"text": self.words.decode(given.ids), "finish_reason": given.reason})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await _object(request)
        ids = prompt(self.words, body["messages"], body.get("tools") or ()) if "messages" in body else \
            self.words.encode(body["prompt"])
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": self.engine.network.shape.context})

    async def _load(self, request: web.Request) -> web.Response:
        body = await _object(request)
        try:
            weights = await asyncio.to_thread(torch.load, body["path"], weights_only=True)
        except (OSError, RuntimeError, UnpicklingError) as error:
            raise ValueError(f"no weights could be read: {error}") from None
        await asyncio.wrap_future(self.engine.load(weights, str(body["version"])))
        return web.json_response({"weight_version": self.engine.version})

    def _asked(self, body: Mapping[str, Any], ids: list[int]) -> Asked:
        for name, neutral in _NEUTRAL.items():
            if body.get(name) not in neutral:
                raise ValueError(f"{name} {body[name]!r} is not served")
        temperature = body.get("temperature")
        most = body.get("max_tokens") or body.get("max_completion_tokens") or MOST
        return Asked(tuple(ids), int(most), 1.0 if temperature is None else float(temperature),
                     int(body.get("seed") or 0))

    def _told(
        self, body: Mapping[str, Any], asked: Asked, given: Given, kind: str, choice: Mapping[str, Any]
    ) -> web.Response:
        told: dict[str, Any] = {
            "id": "tiny", "object": kind, "created": int(time.time()), "model": self.name,
            "usage": {"prompt_tokens": len(asked.prompt), "completion_tokens": len(given.ids),
                      "total_tokens": len(asked.prompt) + len(given.ids)},
            "weight_version": given.version,
            "choices": [{"index": 0, **choice}]}
        if body.get("logprobs"):
            told["choices"][0]["logprobs"] = {"content": [
                {"token": f"token_id:{one}", "logprob": logprob, "bytes": None, "top_logprobs": []}
                for one, logprob in zip(given.ids, given.logprobs, strict=True)]}
        if body.get("return_token_ids"):
            told["prompt_token_ids"] = list(asked.prompt)
            told["choices"][0]["token_ids"] = list(given.ids)
        return web.json_response(told)


@web.middleware
async def _faults(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A request that cannot be served is told why, as vLLM's errors are."""
    try:
        return await handler(request)
    except (KeyError, TypeError, ValueError) as error:
        return web.json_response({"error": {"message": f"{type(error).__name__}: {error}", "type": "BadRequestError",
                                            "code": 400}}, status=400)


async def _object(request: web.Request) -> dict[str, Any]:
    body = await request.json()
    if not isinstance(body, dict):
        raise ValueError("the body is no object")
    return body


def save(network: Network, words: Vocabulary, folder: Path) -> None:
    """Everything of a model in one folder: its shape and vocabulary, and its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.json").write_text(json.dumps({"shape": network.shape.to_json(), "words": list(words.words)}))
    torch.save(network.state_dict(), folder / "weights.pt")


def load(folder: Path) -> tuple[Network, Vocabulary]:
    """The model of a folder."""
    told = json.loads((folder / "model.json").read_text())
    network = Network(Shape(**told["shape"]))
    network.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    return network, Vocabulary(tuple(told["words"]))


@asynccontextmanager
async def served(server: Server, port: int = 0) -> AsyncIterator[str]:
    """The base URL of the server while it runs."""
    runner = web.AppRunner(server.app(), shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
        server.engine.close()
