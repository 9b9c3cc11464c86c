"""The OpenAI responses shape, both ways, for endpoints whose ``base_url`` ends in ``/responses``. Pure, as ``wire``.

Source: the OpenAI API reference, as spoken by vLLM and hosted services. Nothing is kept at the server (``store`` is
false): every request holds the whole conversation. The shape has no seed and no stop words; neither is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from woodshed.errors import ModelGarbled
from woodshed.gateway import wire
from woodshed.interfaces import ModelRequest, ModelResponse, ToolSpec
from woodshed.model import Message, ModelSpec, ToolCall, printable, written_call

_LEFT_OUT = frozenset({"seed", "max_tokens", "stop", "presence_penalty", "frequency_penalty", "response_format",
                       "reasoning_effort"})
"""What chat completions take and this shape does not, or by another name."""
_LENGTH = "max_output_tokens"


def meant(spec: ModelSpec) -> bool:
    """Whether the endpoint is asked in this shape."""
    return spec.base_url.rstrip("/").endswith("/responses")


def body(request: ModelRequest, spec: ModelSpec, seed: int) -> dict[str, Any]:
    """The JSON body of one call."""
    sampling = wire.effective(request, spec)
    asked: dict[str, Any] = {
        "model": spec.name, "store": False, "stream": False,
        "input": [item for message in request.messages for item in _items(message)],
        _LENGTH: min(request.max_tokens or sampling["max_tokens"], sampling["max_tokens"]),
    }
    if request.tools:
        asked["tools"] = [_tool(tool) for tool in request.tools]
    if sampling.get("reasoning_effort") is not None:
        asked["reasoning"] = {"effort": sampling["reasoning_effort"]}
    return {key: value for key, value in sampling.items() if key not in _LEFT_OUT} | asked


def _items(message: Message) -> Iterator[dict[str, Any]]:
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.call or "", "output": printable(message.content)}
        return
    if message.reasoning:
        yield {"type": "reasoning", "id": "rs", "summary": [],
               "content": [{"type": "reasoning_text", "text": printable(message.reasoning)}]}
    if message.content or not message.tool_calls:
        yield {"role": message.role, "content": printable(message.content)}
    for call in message.tool_calls:
        yield {"type": "function_call", "call_id": call.id, "name": call.name,
               "arguments": json.dumps(call.arguments, ensure_ascii=False)}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    """Not strict is said, too: servers of this shape are strict unless they are told."""
    return {"type": "function", "name": tool.name, "description": tool.description,
            "parameters": dict(tool.parameters), "strict": tool.strict}


def answer(payload: bytes, seconds: float, data: Any = None) -> ModelResponse:
    """The answer in ``payload``, of which ``data`` was parsed already.

    Raises ModelGarbled for anything but the protocol, and for a response that failed.
    """
    data = wire.parsed(payload) if data is None else data
    output = data.get("output") if isinstance(data, dict) else None
    if not isinstance(output, list) or not all(isinstance(item, Mapping) for item in output):
        raise ModelGarbled(f"the answer has no output: {wire.excerpt(payload)}")
    if data.get("status") in ("failed", "cancelled"):
        raise ModelGarbled(f"the response {data['status']}: {wire.excerpt(payload)}")
    usage = data.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    calls = tuple(_call(index, item) for index, item in enumerate(output) if item.get("type") == "function_call")
    return ModelResponse(
        content="".join(_text(item) for item in output if item.get("type") == "message"), tool_calls=calls,
        finish_reason=_finish(data, bool(calls)), prompt_tokens=wire.count(usage.get("input_tokens")),
        completion_tokens=wire.count(usage.get("output_tokens")), seconds=seconds,
        reasoning="".join(_thought(item) for item in output if item.get("type") == "reasoning"))


def _finish(data: Mapping[str, Any], calls: bool) -> str:
    why = data.get("incomplete_details")
    if data.get("status") == "incomplete":
        reason = why.get("reason") if isinstance(why, Mapping) else None
        return "length" if reason in (None, _LENGTH) else printable(str(reason))
    return "tool_calls" if calls else "stop"


def _text(item: Mapping[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return printable(content)
    if not isinstance(content, list):
        raise ModelGarbled(f"a message's content is a {type(content).__name__}, not a list of parts")
    return "".join(printable(str(part.get("text") or part.get("refusal") or "")) for part in content
                   if isinstance(part, Mapping))


def _thought(item: Mapping[str, Any]) -> str:
    """The text of a reasoning item; its summary where the server tells no more."""
    texts = (_text({"content": item[name]}) for name in ("content", "summary") if item.get(name))
    return next(filter(None, texts), "")


def _call(index: int, item: Mapping[str, Any]) -> ToolCall:
    name, arguments = item.get("name"), item.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
    ident = printable(str(item.get("call_id") or f"call_{index}"))
    return written_call(ident, printable(name) if isinstance(name, str) else "", text)
