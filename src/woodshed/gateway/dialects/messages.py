"""Anthropic's Messages, as a server: requests of programs become ModelRequests, answers become bodies and events.

Source: the Anthropic API reference, and the types of its SDK (2.14). Read as chat completions would say it: ``system``
is the first message, each ``tool_result`` a message of its own, ``thinking`` the reasoning of its assistant. A thinking
block needs a signature, by which Anthropic knows its own; ours say nothing. What only marks a place (``cache_control``,
``is_error``) is recorded by its places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from woodshed.gateway.dialects import Asked, Failure, Refused, Stamp, fields
from woodshed.gateway.dialects.chat import written
from woodshed.gateway.parsing import dumps
from woodshed.interfaces import ModelRequest, ModelResponse, ToolSpec
from woodshed.model import Message, ToolCall, printable, written_call

ALIVE = fields.event({"type": "ping"}, "ping")
REQUEST_ID = "request-id"
_READ_APART = frozenset({"messages", "system", "tools", "stream", "stop_sequences", "max_tokens", "tool_choice",
                         "cache_control", "is_error"})
_TEXT = {"text": "text"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_NOT_SERVED = ("mcp_servers", "container", "context_management")
"""Of the request's fields. What they ask for would be done by Anthropic's servers."""
_BAD = "INVALID_JSON"
"""Arguments that are no object stand under this key of ``input``, which must be one (so Anthropic's documentation of
fine-grained tool streaming has a program give them back)."""
_STOPS = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
_KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
          413: "request_too_large", 429: "rate_limit_error"}
_FULL = "prompt is too long: shorten the messages"
"""In the words by which programs of this protocol know this failure."""


@dataclass(slots=True)
class _Reader:
    """Reads a body. ``marks`` are the places of what only marks one, by its name."""

    messages: list[Message] = field(default_factory=list)
    marks: dict[str, list[str]] = field(default_factory=dict)

    def mark(self, block: Mapping[str, Any], where: str) -> None:
        """Note what only marks this place."""
        if block.get("cache_control") is not None:
            self.marks.setdefault("cache_control", []).append(where)
        if block.get("is_error") is True:
            self.marks.setdefault("is_error", []).append(where)

    def blocks(self, content: Any, where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
        """A content's blocks, each with its place."""
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        for index, block in enumerate(fields.listed(content, where)):
            place = f"{where}[{index}]"
            self.mark(fields.mapping(block, place), place)
            yield block, place

    def text(self, content: Any, where: str) -> str:
        """A content that is nothing but text."""
        return "\n".join(fields.part(block, place, _TEXT) for block, place in self.blocks(content, where))

    def user(self, content: Any, where: str) -> None:
        """Results of calls, each a message, and what was said, in their order."""
        said: list[str] = []
        for block, place in self.blocks(content, where):
            if block.get("type") != "tool_result":
                said.append(fields.part(block, place, {"text": "text", "tool_result": "content"}))
                continue
            if said:
                self.messages.append(Message(role="user", content="\n".join(said)))
                said = []
            call = fields.text(block.get("tool_use_id"), f"{place}.tool_use_id")
            self.messages.append(Message(role="tool", call=call, content=self.text(block.get("content"),
                                                                                  f"{place}.content")))
        if said or not content:
            self.messages.append(Message(role="user", content="\n".join(said)))

    def assistant(self, content: Any, where: str) -> None:
        """What it said, thought and called."""
        said, thought, calls = list[str](), list[str](), list[ToolCall]()
        for block, place in self.blocks(content, where):
            if block.get("type") == "tool_use":
                calls.append(_call(block, place))
            elif block.get("type") == "thinking":
                thought.append(fields.text(block.get("thinking"), f"{place}.thinking"))
            else:
                said.append(fields.part(block, place, {"text": "text", "thinking": "thinking", "tool_use": "input"}))
        self.messages.append(Message(role="assistant", content="\n".join(said), tool_calls=tuple(calls),
                                     reasoning="\n".join(thought)))

    def message(self, message: Any, where: str) -> None:
        """One message of the conversation."""
        role, content = fields.mapping(message, where).get("role"), message.get("content")
        if role == "user":
            self.user(content, f"{where}.content")
        elif role == "assistant":
            self.assistant(content, f"{where}.content")
        elif role == "system":
            self.messages.append(Message(role="system", content=self.text(content, f"{where}.content")))
        else:
            raise Refused(f"{where}.role must be user, assistant or system", f"{where}.role")


def read(body: Mapping[str, Any], headers: Mapping[str, str]) -> Asked:
    """What ``body`` asks. Raises Refused for what is no request, for images, documents, and tools of Anthropic's."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused("messages must be a list with at least one message", "messages")
    for name in _NOT_SERVED:
        if body.get(name):
            raise Refused(f"{name} is not served: it would be carried out by servers of Anthropic's", name)
    reader = _Reader()
    reader.mark(body, "request")
    if body.get("system"):
        reader.messages.append(Message(role="system", content=reader.text(body["system"], "system")))
    for index, message in enumerate(messages):
        reader.message(message, f"messages[{index}]")
    if reader.messages[-1].role == "assistant":
        raise Refused("the last message is an assistant's: an answer is not begun by the program; end with a user's",
                      f"messages[{len(messages) - 1}]")
    tools = tuple(_tool(tool, f"tools[{index}]", reader)
                  for index, tool in enumerate(fields.listed(body.get("tools"), "tools", most=fields.MOST_TOOLS)))
    asked = _asked(body, headers) | reader.marks
    request = ModelRequest(messages=tuple(reader.messages), tools=tools,
                           stop=fields.stops(body.get("stop_sequences"), "stop_sequences"),
                           max_tokens=fields.most(body, "max_tokens"), asked=fields.sound(asked, "the request"))
    return Asked(request, stream=body.get("stream") is True, model=fields.model(body))


def _asked(body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """What else it asks, in the words of chat completions where they have one."""
    asked = fields.others(body, _READ_APART) | _choice(body.get("tool_choice"))
    wanted = body.get("output_config")
    if isinstance(wanted, Mapping):
        shape, effort = wanted.get("format"), wanted.get("effort")
        if isinstance(shape, Mapping) and shape.get("type") == "json_schema":
            asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer",
                                                                               "schema": shape.get("schema")}}
        if isinstance(effort, str):
            asked["reasoning_effort"] = effort
    for name in ("anthropic-version", "anthropic-beta"):
        if name in headers:
            asked[name] = printable(headers[name])[:1000]
    return asked


def _choice(choice: Any) -> dict[str, Any]:
    if choice is None:
        return {}
    kind = fields.mapping(choice, "tool_choice").get("type")
    one = {} if choice.get("disable_parallel_tool_use") is not True else {"parallel_tool_calls": False}
    if kind == "tool":
        name = fields.text(choice.get("name"), "tool_choice.name")
        return {"tool_choice": {"type": "function", "function": {"name": name}}, **one}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise Refused(f"tool_choice.type must be tool or one of {', '.join(_CHOICES)}", "tool_choice")
    return {"tool_choice": _CHOICES[kind], **one}


def _call(block: Mapping[str, Any], where: str) -> ToolCall:
    given = fields.mapping(block.get("input"), f"{where}.input")
    ident, name = fields.text(block.get("id"), f"{where}.id"), fields.text(block.get("name"), f"{where}.name")
    if given.keys() == {_BAD} and isinstance(given[_BAD], str):
        return written_call(ident, name, given[_BAD])
    try:
        return written_call(ident, name, dumps(given).decode())
    except (ValueError, RecursionError):  # UnicodeEncodeError is one
        raise Refused(f"{where}.input holds what is no JSON", f"{where}.input") from None


def _tool(tool: Any, where: str, reader: _Reader) -> ToolSpec:
    kind = fields.mapping(tool, where).get("type")
    if kind not in (None, "custom"):
        raise Refused(f"{where}: only tools of the program's own are served, and none of Anthropic's", where)
    reader.mark(tool, where)
    return fields.function(tool, where, schema="input_schema")


def listed(name: str) -> dict[str, Any]:
    """The answer to ``GET /v1/models``."""
    return {"data": [model(name)], "has_more": False, "first_id": name, "last_id": name}


def model(name: str) -> dict[str, Any]:
    """A model, as it is listed."""
    return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


# -- answers -----------------------------------------------------------------------------------------------------------


def answer(response: ModelResponse, asked: Asked, stamp: Stamp) -> dict[str, Any]:
    """The whole answer."""
    return {**_head(stamp), "content": list(_blocks(response, stamp)), "stop_reason": _stop(response),
            "usage": _usage(response)}


def opening(response: ModelResponse | None, asked: Asked, stamp: Stamp) -> bytes:
    """``message_start``: without content, and without what was used where that is not known yet."""
    usage = {"input_tokens": 0 if response is None else response.prompt_tokens, "output_tokens": 0}
    return _event("message_start", message={**_head(stamp), "content": [], "usage": usage}) + ALIVE


def stream(response: ModelResponse, asked: Asked, stamp: Stamp) -> Iterator[bytes]:
    """Each block from its start to its stop, then why it ended and what was used."""
    for index, block in enumerate(_blocks(response, stamp)):
        yield _event("content_block_start", index=index, content_block={**block, **_EMPTY[block["type"]]})
        for delta in _deltas(block, response.tool_calls):
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta={"stop_reason": _stop(response), "stop_sequence": None},
                 usage=_usage(response))
    yield _event("message_stop")


_EMPTY: Mapping[str, Mapping[str, Any]] = {
    "text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}


def _deltas(block: Mapping[str, Any], calls: Iterable[ToolCall]) -> Iterator[dict[str, Any]]:
    if block["type"] == "text":
        yield {"type": "text_delta", "text": block["text"]}
    elif block["type"] == "thinking":
        yield {"type": "thinking_delta", "thinking": block["thinking"]}
        yield {"type": "signature_delta", "signature": block["signature"]}
    else:
        yield {"type": "input_json_delta", "partial_json": ""}
        yield {"type": "input_json_delta", "partial_json": dumps(block["input"]).decode()}


def _blocks(response: ModelResponse, stamp: Stamp) -> Iterator[dict[str, Any]]:
    if response.reasoning:
        yield {"type": "thinking", "thinking": response.reasoning, "signature": f"woodshed-{stamp.id}"}
    if response.content:
        yield {"type": "text", "text": response.content}
    for call in response.tool_calls:
        given = call.arguments if call.raw is None else {_BAD: written(call)}
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def failure(failure: Failure) -> dict[str, Any]:
    """A failure, in a body."""
    kind = _KINDS.get(failure.status, "api_error" if failure.status >= 500 else "invalid_request_error")
    message = _FULL if failure.code == "context_length_exceeded" else failure.message
    return {"type": "error", "error": {"type": kind, "message": message}}


def broken(failed: Failure, asked: Asked, stamp: Stamp) -> bytes:
    """A failure, as the last event of a stream that has begun."""
    return fields.event(failure(failed), "error")


def _event(name: str, /, **data: Any) -> bytes:
    return fields.event({"type": name, **data}, name)


def _head(stamp: Stamp) -> dict[str, Any]:
    return {"id": f"msg_{stamp.id}", "type": "message", "role": "assistant", "model": stamp.model,
            "stop_reason": None, "stop_sequence": None}


def _stop(response: ModelResponse) -> str:
    if response.tool_calls and response.finish_reason in ("stop", "function_call", ""):
        return "tool_use"
    return _STOPS.get(response.finish_reason, "end_turn")


def _usage(response: ModelResponse) -> dict[str, int]:
    return {"input_tokens": response.prompt_tokens, "output_tokens": response.completion_tokens}
