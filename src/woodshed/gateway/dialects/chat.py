"""Chat completions, as a server: requests of programs become ModelRequests, answers become bodies and events.

Source: the OpenAI API reference, and what its SDKs send. A conversation here is text and tool calls: several parts of
text in one message are joined by line breaks, as vLLM and llama.cpp join them for templates that take one text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from woodshed.gateway.dialects import Asked, Failure, Refused, Stamp
from woodshed.interfaces import ModelRequest, ModelResponse, ToolSpec
from woodshed.model import Message, ToolCall, printable, written_call

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""``developer`` is the newer word for ``system``; open models' templates know only the older."""
_READ_APART = frozenset({"messages", "tools", "stream", "stream_options", "stop", "max_tokens",
                         "max_completion_tokens"})
_ASKED_BYTES = 65_536
"""Of everything else that a request says. A schema for the answer is the largest of it."""
_MOST_TOOLS = 512
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def read(body: Mapping[str, Any]) -> Asked:
    """What ``body`` asks. Raises Refused for what is no request, and for images, audio and more than one choice."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused("messages must be a list with at least one message", "messages")
    if body.get("n") not in (None, 1):
        raise Refused("n: one choice is given for each request; ask again for another", "n")
    if body.get("functions") is not None or body.get("function_call") is not None:
        raise Refused("functions are not served any more: use tools", "functions")
    options = body.get("stream_options")
    model = body.get("model")
    request = ModelRequest(
        messages=tuple(_message(index, message) for index, message in enumerate(messages)),
        tools=_tools(body.get("tools")), stop=_stop(body.get("stop")), max_tokens=_most(body), asked=_asked(body))
    return Asked(request, stream=body.get("stream") is True,
                 usage=isinstance(options, Mapping) and options.get("include_usage") is True,
                 model=printable(model)[:200] if isinstance(model, str) else "")


def _message(index: int, message: Any) -> Message:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise Refused(f"{where} must be an object", where)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise Refused(f"{where}.role must be one of {', '.join(_ROLES)}", f"{where}.role")
    call = message.get("tool_call_id")
    if role == "tool" and not isinstance(call, str):
        raise Refused(f"{where}.tool_call_id must say which call this answers", f"{where}.tool_call_id")
    return Message(
        role=_ROLES[role], content=_text(message.get("content"), f"{where}.content"),
        tool_calls=_calls(message.get("tool_calls"), f"{where}.tool_calls") if role == "assistant" else (),
        call=printable(call) if role == "tool" and isinstance(call, str) else None)


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return printable(content)
    if not isinstance(content, list):
        raise Refused(f"{where} must be a text or a list of parts", where)
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get(kind) if isinstance(part, Mapping) and kind in ("text", "refusal") else None
    if not isinstance(text, str):
        raise Refused(f"{where}: only parts of type text are served", where)
    return printable(text)


def _calls(calls: Any, where: str) -> tuple[ToolCall, ...]:
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise Refused(f"{where} must be a list", where)
    return tuple(_call(call, f"{where}[{index}]") for index, call in enumerate(calls))


def _call(call: Any, where: str) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise Refused(f"{where}.function must be an object", where)
    ident, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    if not isinstance(ident, str) or not isinstance(name, str) or not isinstance(arguments, str | None):
        raise Refused(f"{where} needs an id, a function.name and function.arguments, all text", where)
    return written_call(printable(ident), printable(name), arguments or "")


def _tools(tools: Any) -> tuple[ToolSpec, ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list) or len(tools) > _MOST_TOOLS:
        raise Refused(f"tools must be a list of at most {_MOST_TOOLS}", "tools")
    return tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools))


def _tool(tool: Any, where: str) -> ToolSpec:
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping):
        raise Refused(f"{where}: only tools of type function are served", where)
    name, about, parameters = function.get("name"), function.get("description"), function.get("parameters")
    if not isinstance(name, str) or not isinstance(about, str | None):
        raise Refused(f"{where}.function needs a name, and a description that is text", where)
    if not isinstance(parameters, Mapping | None):
        raise Refused(f"{where}.function.parameters must be a schema", where)
    return ToolSpec(printable(name), printable(about or ""), sound(parameters or _NO_PARAMETERS, where))


def _stop(stop: Any) -> tuple[str, ...]:
    words = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(words, list) or len(words) > 16 or not all(isinstance(word, str) for word in words):
        raise Refused("stop must be a text or a short list of texts", "stop")
    return tuple(printable(word) for word in words if word)


def _most(body: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        most = body.get(name)
        if most is None:
            continue
        if not isinstance(most, int) or isinstance(most, bool) or not 0 < most < 1 << 31:
            raise Refused(f"{name} must be a positive number", name)
        return most
    return None


def _asked(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return sound({name: value for name, value in body.items() if name not in _READ_APART}, "the request")


def sound(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``given`` as a record may hold it. Raises Refused where it is too large, or holds what no JSON may."""
    try:
        text = json.dumps(given, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError):  # UnicodeEncodeError is one
        raise Refused(f"{where} holds what is no JSON", where) from None
    if len(text) > _ASKED_BYTES:
        raise Refused(f"{where} is longer than {_ASKED_BYTES} bytes", where)
    return dict(given)


# -- answers -----------------------------------------------------------------------------------------------------------


def answer(response: ModelResponse, stamp: Stamp) -> dict[str, Any]:
    """The whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": response.content, "refusal": None}
    if response.tool_calls:
        message["content"] = response.content or None
        message["tool_calls"] = [_call_json(call) for call in response.tool_calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(response)}
    return {**_head(stamp, "chat.completion"), "choices": [choice], "usage": _usage(response)}


def stream(response: ModelResponse, asked: Asked, stamp: Stamp) -> Iterator[bytes]:
    """The same answer as server-sent events: role, text, each call's name and then its arguments, the end."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": response.content}] if response.content else []
    for index, call in enumerate(response.tool_calls):
        whole = _call_json(call)
        name = {"name": call.name, "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": name}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": whole["function"]["arguments"]}}]})
    head, more = _head(stamp, "chat.completion.chunk"), {"usage": None} if asked.usage else {}
    for delta in deltas:
        yield event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more})
    yield event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(response)}], **more})
    if asked.usage:
        yield event({**head, "choices": [], "usage": _usage(response)})
    yield b"data: [DONE]\n\n"


def failure(failure: Failure) -> dict[str, Any]:
    """A failure, in a body."""
    return {"error": {"message": failure.message, "type": failure.kind, "param": failure.param, "code": failure.code}}


def broken(failed: Failure) -> bytes:
    """A failure, as the last event of a stream that has begun."""
    return event(failure(failed))


def event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8") + b"\n\n"


def _head(stamp: Stamp, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{stamp.id}", "object": kind, "created": stamp.at, "model": stamp.model}


def _call_json(call: ToolCall) -> dict[str, Any]:
    """A call as the model wrote it, well or badly: the program that asked is to explain it."""
    written = call.raw if call.raw is not None else json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": written}}


def _finish(response: ModelResponse) -> str:
    """A server that calls an answer with calls in it ``stop`` would leave them unread."""
    if response.tool_calls and response.finish_reason in ("stop", "function_call", ""):
        return "tool_calls"
    return {"unparsed": "stop"}.get(response.finish_reason, response.finish_reason)


def _usage(response: ModelResponse) -> dict[str, int]:
    return {"prompt_tokens": response.prompt_tokens, "completion_tokens": response.completion_tokens,
            "total_tokens": response.prompt_tokens + response.completion_tokens}
