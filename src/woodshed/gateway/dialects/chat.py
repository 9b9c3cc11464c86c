"""Chat completions, as a server: requests of programs become ModelRequests, answers become bodies and events.

Source: the OpenAI API reference, and what its SDKs send. A model's reasoning is ``reasoning_content``, as vLLM, SGLang
and llama.cpp have it; from a program the newer name ``reasoning`` is understood, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from woodshed.gateway.dialects import Asked, Failure, Refused, Stamp, fields
from woodshed.interfaces import ModelRequest, ModelResponse, ToolSpec
from woodshed.model import Message, ToolCall, printable, written_call
from woodshed.model.exchange import UNPARSED

ALIVE = b": waiting for the model\n\n"
REQUEST_ID = "x-request-id"
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""``developer`` is the newer word for ``system``; open models' templates know only the older."""
_READ_APART = frozenset({"messages", "tools", "stream", "stream_options", "stop", "max_tokens",
                         "max_completion_tokens"})
_PARTS = {"text": "text", "refusal": "refusal"}


def read(body: Mapping[str, Any], headers: Mapping[str, str]) -> Asked:
    """What ``body`` asks. Raises Refused for what is no request, and for images, audio and more than one choice."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused("messages must be a list with at least one message", "messages")
    if body.get("n") not in (None, 1):
        raise Refused("n: one choice is given for each request; ask again for another", "n")
    if body.get("functions") is not None or body.get("function_call") is not None:
        raise Refused("functions are not served any more: use tools", "functions")
    options = body.get("stream_options")
    request = ModelRequest(
        messages=tuple(_message(index, message) for index, message in enumerate(messages)),
        tools=_tools(body.get("tools")), stop=fields.stops(body.get("stop"), "stop"),
        max_tokens=fields.most(body, "max_completion_tokens", "max_tokens"), asked=fields.others(body, _READ_APART))
    return Asked(request, stream=body.get("stream") is True,
                 usage=isinstance(options, Mapping) and options.get("include_usage") is True,
                 model=fields.model(body))


def _message(index: int, message: Any) -> Message:
    where = f"messages[{index}]"
    role = fields.mapping(message, where).get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise Refused(f"{where}.role must be one of {', '.join(_ROLES)}", f"{where}.role")
    call = message.get("tool_call_id")
    if role == "tool" and not isinstance(call, str):
        raise Refused(f"{where}.tool_call_id must say which call this answers", f"{where}.tool_call_id")
    assistant = role == "assistant"
    thought = message.get("reasoning_content") or message.get("reasoning")
    return Message(
        role=_ROLES[role], content=fields.spoken(message.get("content"), f"{where}.content", _PARTS),
        tool_calls=_calls(message.get("tool_calls"), f"{where}.tool_calls") if assistant else (),
        call=printable(call) if role == "tool" and isinstance(call, str) else None,
        reasoning=printable(thought) if assistant and isinstance(thought, str) else "")


def _calls(calls: Any, where: str) -> tuple[ToolCall, ...]:
    return tuple(_call(call, f"{where}[{index}]") for index, call in enumerate(fields.listed(calls, where)))


def _call(call: Any, where: str) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise Refused(f"{where}.function must be an object", where)
    ident, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    if not isinstance(ident, str) or not isinstance(name, str) or not isinstance(arguments, str | None):
        raise Refused(f"{where} needs an id, a function.name and function.arguments, all text", where)
    return written_call(printable(ident), printable(name), arguments or "")


def _tools(tools: Any) -> tuple[ToolSpec, ...]:
    listed = fields.listed(tools, "tools", most=fields.MOST_TOOLS)
    return tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(listed))


def _tool(tool: Any, where: str) -> ToolSpec:
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping):
        raise Refused(f"{where}: only tools of type function are served", where)
    return fields.function(function, f"{where}.function", schema="parameters")


# -- answers -----------------------------------------------------------------------------------------------------------


def answer(response: ModelResponse, asked: Asked, stamp: Stamp) -> dict[str, Any]:
    """The whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": response.content, "refusal": None}
    if response.reasoning:
        message["reasoning_content"] = response.reasoning
    if response.tool_calls:
        message["content"] = response.content or None
        message["tool_calls"] = [_call_json(call) for call in response.tool_calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(response)}
    return {**_head(stamp, "chat.completion"), "choices": [choice], "usage": _usage(response)}


def opening(response: ModelResponse | None, asked: Asked, stamp: Stamp) -> bytes:
    """A first chunk with the role."""
    return _chunk({"role": "assistant", "content": ""}, asked, stamp)


def stream(response: ModelResponse, asked: Asked, stamp: Stamp) -> Iterator[bytes]:
    """Reasoning, text, each call's name and then its arguments, the end."""
    if response.reasoning:
        yield _chunk({"reasoning_content": response.reasoning}, asked, stamp)
    if response.content:
        yield _chunk({"content": response.content}, asked, stamp)
    for index, call in enumerate(response.tool_calls):
        whole = _call_json(call)
        name = {"name": call.name, "arguments": ""}
        arguments = {"arguments": whole["function"]["arguments"]}
        yield _chunk({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": name}]},
                     asked, stamp)
        yield _chunk({"tool_calls": [{"index": index, "function": arguments}]}, asked, stamp)
    yield _chunk({}, asked, stamp, _finish(response))
    if asked.usage:
        yield fields.event({**_head(stamp, "chat.completion.chunk"), "choices": [], "usage": _usage(response)})
    yield b"data: [DONE]\n\n"


def failure(failure: Failure) -> dict[str, Any]:
    """A failure, in a body."""
    return {"error": {"message": failure.message, "type": failure.kind, "param": failure.param, "code": failure.code}}


def broken(failed: Failure, asked: Asked, stamp: Stamp) -> bytes:
    """A failure, as the last event of a stream that has begun."""
    return fields.event(failure(failed))


def _chunk(delta: Mapping[str, Any], asked: Asked, stamp: Stamp, finish: str | None = None) -> bytes:
    return fields.event({**_head(stamp, "chat.completion.chunk"),
                         "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
                         **({"usage": None} if asked.usage else {})})


def _head(stamp: Stamp, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{stamp.id}", "object": kind, "created": stamp.at, "model": stamp.model}


def written(call: ToolCall) -> str:
    """A call's arguments as the model wrote them, well or badly: the program that asked is to explain it."""
    return call.raw if call.raw is not None else json.dumps(call.arguments, ensure_ascii=False)


def _call_json(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": written(call)}}


def _finish(response: ModelResponse) -> str:
    """A server that calls an answer with calls in it ``stop`` would leave them unread."""
    if response.tool_calls and response.finish_reason in ("stop", "function_call", ""):
        return "tool_calls"
    return {UNPARSED: "stop"}.get(response.finish_reason, response.finish_reason)


def _usage(response: ModelResponse) -> dict[str, int]:
    return {"prompt_tokens": response.prompt_tokens, "completion_tokens": response.completion_tokens,
            "total_tokens": response.prompt_tokens + response.completion_tokens}
