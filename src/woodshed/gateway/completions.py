"""Raw completions: one text goes to an endpoint whose ``base_url`` ends in ``/completions``, which continues it. Pure.

The conversation is written as text here, after every interceptor has seen its messages, by the chat format that came
with the request; nothing is guessed from the model's name. The text that leaves is what is recorded.

Source: the OpenAI API reference for completions, as spoken by vLLM, SGLang and llama.cpp. ``skip_special_tokens``,
which the first two know, is false: a family's marks are special tokens of its models, and an answer without them says
nothing. llama.cpp has ``preserved_tokens`` for the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.errors import ModelGarbled, ModelRefused
from woodshed.gateway import wire
from woodshed.interfaces import ModelRequest, ModelResponse
from woodshed.model import ModelSpec, printable
from woodshed.model.address import continues
from woodshed.model.exchange import ChatFormat
from woodshed.model.tokens import shared

_LEFT_OUT = frozenset({"tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort"})
"""What chat completions take and this shape does not."""


def meant(spec: ModelSpec) -> bool:
    """Whether the endpoint is asked in this shape."""
    return continues(spec.base_url)


def chat_of(request: ModelRequest, spec: ModelSpec) -> ChatFormat:
    """The format that the request is to be written in. Raises ModelRefused where none came with it."""
    if request.chat is None:
        raise ModelRefused(f"{spec.base_url} takes text, and nothing says how this conversation is written as such: "
                           "it needs a dialect (docs/dialects.md#raw-completions); programs of others, an endpoint of "
                           "chat completions")
    return request.chat


def body(request: ModelRequest, spec: ModelSpec, seed: int) -> dict[str, Any]:
    """The JSON body of one call. Raises ModelRefused."""
    chat, sampling = chat_of(request, spec), wire.effective(request, spec)
    asked: dict[str, Any] = {
        "model": spec.name,
        "prompt": prompt(request, chat),
        "max_tokens": min(request.max_tokens or sampling["max_tokens"], sampling["max_tokens"]),
        "seed": sampling.get("seed", seed) & wire.SEED_BITS,
        "stop": [*chat.stops, *request.stop],
        "skip_special_tokens": False, "preserved_tokens": list(chat.marks), "stream": False,
    }
    return {key: value for key, value in sampling.items() if key not in _LEFT_OUT} | asked


def prompt(request: ModelRequest, chat: ChatFormat) -> str:
    """The text that is sent."""
    return printable(chat.prompt(request.messages, request.tools))


def told(request: ModelRequest, before: str) -> tuple[dict[str, Any], str]:
    """What the event of a call tells of its prompt, and that prompt, of which the next event tells the rest alone.

    ``kept`` counts the characters that are those of the prompt ``before``; ``chat`` names the format.
    """
    if request.chat is None:
        return {}, before
    text = prompt(request, request.chat)
    kept = shared(before, text)
    return {"prompt": {"chat": request.chat.name, "kept": kept, "text": text[kept:]}}, text


def answer(payload: bytes, seconds: float, data: Any = None, *, chat: ChatFormat) -> ModelResponse:
    """The answer in ``payload``, of which ``data`` was parsed already: what the model wrote after its format's begin.

    Raises ModelGarbled for anything but the protocol.
    """
    data = wire.parsed(payload) if data is None else data
    choices = data.get("choices") if isinstance(data, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, Mapping) or not isinstance(choice.get("text"), str):
        raise ModelGarbled(f"choices[0].text is missing or no text: {wire.excerpt(payload)}")
    usage = data.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    text = printable(choice["text"])
    ending = next((stop for stop in chat.stops if text.endswith(stop)), "")
    return ModelResponse(
        content=chat.opened + text.removesuffix(ending), finish_reason=str(choice.get("finish_reason") or "stop"),
        prompt_tokens=wire.count(usage.get("prompt_tokens")),
        completion_tokens=wire.count(usage.get("completion_tokens")), seconds=seconds)
