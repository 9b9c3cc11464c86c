"""The OpenAI chat-completions shape, both ways. Pure: a request becomes a JSON body, an answer a ModelResponse.

Source: the OpenAI API reference, as spoken by llama.cpp, vLLM, SGLang and hosted services; ``top_k`` is their common
extension and is sent only when asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from woodshed.errors import ModelGarbled
from woodshed.gateway.capture.server import part
from woodshed.gateway.parsing import loads
from woodshed.interfaces import ModelRequest, ModelResponse, ToolSpec
from woodshed.model import Message, ModelSpec, ToolCall, printable, written_call

SEED_BITS = 0x7FFFFFFF  # llama.cpp reads an unsigned 32-bit seed, vLLM a signed 64-bit one

PASSED = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
          "response_format", "reasoning_effort")
"""What else a program may ask of the server (``ModelRequest.asked``), besides ``seed``, and with tools:"""
_WITH_TOOLS = ("tool_choice", "parallel_tool_calls")
THOUGHT = ("reasoning_content", "reasoning")
"""In which field servers tell, and are told, what a model thought: SGLang, llama.cpp, DeepSeek and older vLLM in the
first, vLLM since 0.12 and gpt-oss's servers in the second. Records have the first."""


def effective(request: ModelRequest, spec: ModelSpec) -> dict[str, Any]:
    """What is asked of the sampler and the server: the agent's config, and what a program asked where it is silent."""
    names = (*PASSED, *(_WITH_TOOLS if request.tools else ()))
    asked = {name: request.asked[name] for name in names if request.asked.get(name) is not None}
    if isinstance(seed := request.asked.get("seed"), int):
        asked["seed"] = seed & SEED_BITS
    return asked | spec.sampling.model_dump(mode="json", exclude_none=True)


def body(request: ModelRequest, spec: ModelSpec, seed: int, thought: Sequence[str] = THOUGHT) -> dict[str, Any]:
    """The JSON body of one call; ``seed`` where neither the agent's config nor the request names one.

    What the model thought is sent back in the fields ``thought``: the server's own, or all where it is not known yet.
    """
    sampling = effective(request, spec)
    asked: dict[str, Any] = {
        "model": spec.name,
        "messages": [message_json(message, thought) for message in request.messages],
        "max_tokens": min(request.max_tokens or sampling["max_tokens"], sampling["max_tokens"]),
        "seed": sampling.get("seed", seed) & SEED_BITS,
        "stream": False,
    }
    optional = {"stop": list(request.stop) or None, "tools": [tool_json(tool) for tool in request.tools] or None}
    return sampling | asked | {key: value for key, value in optional.items() if value is not None}


def sampled(body: Mapping[str, Any]) -> dict[str, Any]:
    """What of a body is for the sampler."""
    names = (*PASSED, *_WITH_TOOLS, "max_tokens", "seed", "stop")
    return {name: body[name] for name in names if name in body}


def message_json(message: Message, thought: Sequence[str] = THOUGHT[:1]) -> dict[str, Any]:
    """One message as it is sent. A call whose arguments were no object is sent with ``{}``: servers parse history."""
    sent: dict[str, Any] = {"role": message.role, "content": printable(message.content)}
    if message.tool_calls:
        sent["tool_calls"] = [
            {"id": call.id, "type": "function",
             "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}}
            for call in message.tool_calls
        ]
    if message.call is not None:
        sent["tool_call_id"] = message.call
    if message.reasoning:
        sent |= dict.fromkeys(thought, printable(message.reasoning))
    return sent


def tool_json(tool: ToolSpec) -> dict[str, Any]:
    """One tool on offer."""
    return {"type": "function", "function": {"name": tool.name, "description": tool.description,
                                             "parameters": dict(tool.parameters),
                                             **({"strict": True} if tool.strict else {})}}


def parsed(payload: bytes) -> Any:
    """The JSON of an answer. Raises ModelGarbled."""
    try:
        return loads(payload)
    except (ValueError, RecursionError) as error:
        raise ModelGarbled(f"the answer is not JSON ({type(error).__name__}): {excerpt(payload)}") from None


def answer(payload: bytes, seconds: float, data: Any = None) -> ModelResponse:
    """The answer in ``payload``, of which ``data`` was parsed already. Raises ModelGarbled for all but the protocol.

    A tool call the model wrote badly is no garbled answer: it comes back as a ToolCall with ``error``, for the loop to
    explain. Only what the server itself must get right is demanded here.
    """
    data = parsed(payload) if data is None else data
    choice = _first_choice(data, payload)
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise ModelGarbled(f"choices[0].message is missing or no object: {excerpt(payload)}")
    usage = data.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    return ModelResponse(
        content=_text(message.get("content")),
        tool_calls=_calls(message.get("tool_calls")),
        finish_reason=str(choice.get("finish_reason") or "stop"),
        prompt_tokens=count(usage.get("prompt_tokens")),
        completion_tokens=count(usage.get("completion_tokens")),
        seconds=seconds,
        reasoning=_text(next((message[name] for name in THOUGHT if message.get(name)), None)),
    )


def thinks_in(data: Any) -> tuple[str, ...]:
    """The field in which an answer tells what the model thought; none where it tells nothing of that."""
    message = part(data, "choices", 0, "message")
    return next(((name,) for name in THOUGHT if isinstance(message, Mapping) and message.get(name)), ())


def excerpt(payload: bytes, length: int = 300) -> str:
    """The start of ``payload``, on one line, for a message."""
    text = " ".join(payload[: 4 * length].decode("utf-8", "replace").split())
    return (text[:length] + " ...") if len(text) > length else (text or "an empty body")


def _first_choice(data: Any, payload: bytes) -> Mapping[str, Any]:
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise ModelGarbled(f"the answer has no choices: {excerpt(payload)}")
    return choices[0]


def _text(content: Any) -> str:
    """Text content; some servers send a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return printable(content)
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        return "".join(printable(str(part.get("text") or "")) for part in content)
    raise ModelGarbled(f"message.content is a {type(content).__name__}, not text")


def _calls(calls: Any) -> tuple[ToolCall, ...]:
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise ModelGarbled(f"message.tool_calls is a {type(calls).__name__}, not a list")
    return tuple(_call(index, call) for index, call in enumerate(calls))


def _call(index: int, call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise ModelGarbled(f"message.tool_calls[{index}].function is missing or no object")
    name, arguments = function.get("name"), function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
    return written_call(str(call.get("id") or f"call_{index}"), printable(name) if isinstance(name, str) else "", text)


def count(value: Any) -> int:
    """``value`` where it is one; else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
