"""Capture: how each server is asked for token ids and logprobs, and where it tells them. Pure, one module a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.gateway.capture import llamacpp, plain, sglang, transformers, vllm
from woodshed.gateway.capture.server import Server, part
from woodshed.model.rollout import CaptureLevel
from woodshed.model.tokens import Tokens, flaws

SERVERS: Mapping[str, Server] = {
    "vllm": Server(vllm.FIELDS, vllm.read, neutral=vllm.NEUTRAL),
    "sglang": Server(sglang.FIELDS, sglang.read, neutral=sglang.NEUTRAL),
    "llama.cpp": Server(llamacpp.FIELDS, llamacpp.read, llamacpp.tokenize, llamacpp.tokenized, llamacpp.NEUTRAL),
    "transformers": Server(transformers.FIELDS, transformers.read, neutral=transformers.NEUTRAL),
    "plain": Server(plain.FIELDS, plain.read, neutral=plain.NEUTRAL),
}
"""Servers by name. ``plain`` speaks chat completions and no more: its logprobs have no ids."""

_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}


def kind(models: Any) -> str:
    """Which server answered ``GET /v1/models`` so: by the owner that each tells. ``plain`` where none is known.

    transformers serve names the model's author there; it is known by name alone.
    """
    listed = models.get("data") if isinstance(models, Mapping) else None
    for model in listed if isinstance(listed, list) else ():
        if isinstance(model, Mapping) and (name := _OWNERS.get(str(model.get("owned_by")))) is not None:
            return name
    return "plain"


def vocabulary(models: Any, name: str) -> int | None:
    """How many ids the model has, where the answer to ``GET /v1/models`` tells it: llama.cpp's ``meta.n_vocab``.

    vLLM 0.32 and SGLang 0.5 tell it nowhere.
    """
    listed = models.get("data") if isinstance(models, Mapping) else None
    found = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    told = [part(one, "meta", "n_vocab") for one in found if one.get("id") == name or len(found) == 1]
    return next((count for count in told if type(count) is int and count > 0), None)


def level(tokens: Tokens, vocabulary: int | None = None) -> CaptureLevel:
    """What was really told, whatever was asked for. Flawed tokens are no better than text."""
    if tokens.prompt is None or tokens.completion is None or flaws(tokens, vocabulary=vocabulary):
        return CaptureLevel.TEXT
    return CaptureLevel.TOKENS if tokens.logprobs is None else CaptureLevel.LOGPROBS
