"""OpenAI's Responses, as a server: requests of programs become ModelRequests, answers become bodies and events.

Source: the OpenAI API reference, and the types of its SDK (3.57). Items become messages as chat completions would have
them: what an assistant thought, said and called in a row is one message. Nothing is stored, whatever ``store`` says,
but for ``previous_response_id``, which the door remembers for a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from woodshed.gateway.dialects import Asked, Failure, Refused, Stamp, chat, fields
from woodshed.interfaces import ModelRequest, ModelResponse, ToolSpec
from woodshed.model import Message, ToolCall, written_call

ALIVE = chat.ALIVE
REQUEST_ID = chat.REQUEST_ID
_READ_APART = frozenset({"input", "instructions", "tools", "stream", "stream_options", "max_output_tokens", "text",
                         "tool_choice", "previous_response_id"})
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_THOUGHTS = {"reasoning_text": "text", "summary_text": "text"}
_NOT_SERVED = ("background", "conversation", "prompt")
_AGAIN = ("instructions", "metadata", "temperature", "top_p", "max_output_tokens", "max_tool_calls",
          "previous_response_id", "reasoning", "text", "top_logprobs", "truncation", "user", "safety_identifier",
          "prompt_cache_key")
"""What an answer repeats of its request as it stood there."""


@dataclass(slots=True)
class _Reader:
    """Reads the items of an input. What an assistant did in a row waits until it is whole."""

    messages: list[Message] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    thought: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    waits: bool = False

    def item(self, item: Any, where: str) -> None:
        """One item of the input."""
        kind = fields.mapping(item, where).get("type") or "message"
        if kind == "message":
            self.message(item, where)
        elif kind == "function_call":
            call = written_call(*(fields.text(item.get(name), f"{where}.{name}")
                                  for name in ("call_id", "name", "arguments")))
            self.calls.append(call)
            self.waits = True
        elif kind == "function_call_output":
            self.end()
            call_id = fields.text(item.get("call_id"), f"{where}.call_id")
            self.messages.append(Message(role="tool", call=call_id,
                                         content=fields.spoken(item.get("output"), f"{where}.output", _PARTS)))
        elif kind == "reasoning":
            self.reasoning(item, where)
        else:
            shown = kind[:64] if isinstance(kind, str) else "of no name"
            raise Refused(f"{where}: items of type {fields.text(shown, where)} are not served: send messages, "
                          "function_call, function_call_output and reasoning", where)

    def message(self, item: Mapping[str, Any], where: str) -> None:
        """Something said. An assistant's second message in a row, or one after its calls, begins another turn."""
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise Refused(f"{where}.role must be one of {', '.join(_ROLES)}", f"{where}.role")
        text = fields.spoken(item.get("content"), f"{where}.content", _PARTS)
        if role != "assistant":
            self.end()
            self.messages.append(Message(role=_ROLES[role], content=text))
            return
        if self.said or self.calls:
            self.end()
        self.said.append(text)
        self.waits = True

    def reasoning(self, item: Mapping[str, Any], where: str) -> None:
        """What the assistant thought before what follows."""
        content, summary = item.get("content"), item.get("summary")
        if not content and not summary:
            if item.get("encrypted_content"):
                raise Refused(f"{where}.encrypted_content was made by another server, and cannot be read here", where)
            return
        name = "content" if content else "summary"
        if self.said or self.calls:
            self.end()
        self.thought.append(fields.spoken(content or summary, f"{where}.{name}", _THOUGHTS))
        self.waits = True

    def end(self) -> None:
        """The assistant's turn is whole."""
        if self.waits:
            self.messages.append(Message(role="assistant", content="\n".join(self.said), tool_calls=tuple(self.calls),
                                         reasoning="\n".join(self.thought)))
        self.said, self.thought, self.calls, self.waits = [], [], [], False


def read(body: Mapping[str, Any], headers: Mapping[str, str]) -> Asked:
    """What ``body`` asks. Raises Refused for what is no request, for images and files, and for tools of OpenAI's."""
    for name in _NOT_SERVED:
        if body.get(name):
            raise Refused(f"{name} is not served: send the conversation as input, and wait for its answer", name)
    follows, told = body.get("previous_response_id"), body.get("instructions")
    if not isinstance(follows, str | None):
        raise Refused("previous_response_id must be a text", "previous_response_id")
    reader = _Reader()
    if told is not None:
        reader.messages.append(Message(role="system", content=fields.text(told, "instructions")))
    _read_input(body.get("input"), reader, needed=follows is None)
    request = ModelRequest(
        messages=tuple(reader.messages), tools=_tools(body.get("tools")),
        max_tokens=fields.most(body, "max_output_tokens"), asked=fields.sound(_asked(body), "the request"))
    return Asked(request, stream=body.get("stream") is True, usage=True, model=fields.model(body), follows=follows,
                 leading=0 if told is None else 1, remembered=True, again=_again(body))


def _read_input(given: Any, reader: _Reader, *, needed: bool) -> None:
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    items = fields.listed(given, "input")
    if needed and not items:
        raise Refused("input must be a text or a list with at least one item", "input")
    for index, item in enumerate(items):
        reader.item(item, f"input[{index}]")
    reader.end()


def _asked(body: Mapping[str, Any]) -> dict[str, Any]:
    """What else it asks, in the words of chat completions where they have one."""
    asked = fields.others(body, _READ_APART)
    text, reasoning = body.get("text"), body.get("reasoning")
    if isinstance(text, Mapping):
        asked["text"] = dict(text)
        if (shape := text.get("format")) is not None:
            asked |= _shape(fields.mapping(shape, "text.format"))
    if isinstance(reasoning, Mapping) and isinstance(reasoning.get("effort"), str):
        asked["reasoning_effort"] = reasoning["effort"]
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping):
        if choice.get("type") != "function":
            raise Refused("tool_choice must be auto, none, required, or a tool of type function", "tool_choice")
        name = fields.text(choice.get("name"), "tool_choice.name")
        asked["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif choice is not None:
        asked["tool_choice"] = fields.text(choice, "tool_choice")
    return asked


def _shape(shape: Mapping[str, Any]) -> dict[str, Any]:
    """The form of the answer."""
    if shape.get("type") == "json_schema":
        names = ("name", "description", "schema", "strict")
        named = {name: shape[name] for name in names if shape.get(name) is not None}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {"response_format": {"type": "json_object"}} if shape.get("type") == "json_object" else {}


def _tools(tools: Any) -> tuple[ToolSpec, ...]:
    listed = fields.listed(tools, "tools", most=fields.MOST_TOOLS)
    return tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(listed))


def _tool(tool: Any, where: str) -> ToolSpec:
    kind = fields.mapping(tool, where).get("type")
    if kind != "function":
        named = f" ({kind[:64]} is not)" if isinstance(kind, str) else ""
        raise Refused(f"{where}: only tools of type function are served{fields.text(named, where)}", where)
    return fields.function(tool, where, schema="parameters")


def _again(body: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer repeats."""
    again = {name: body[name] for name in _AGAIN if body.get(name) is not None}
    choice, parallel = body.get("tool_choice"), body.get("parallel_tool_calls")
    return {**again, "tools": body.get("tools") or [], "tool_choice": "auto" if choice is None else choice,
            "parallel_tool_calls": parallel if isinstance(parallel, bool) else True}


# -- answers -----------------------------------------------------------------------------------------------------------


def answer(response: ModelResponse, asked: Asked, stamp: Stamp) -> dict[str, Any]:
    """The whole answer."""
    cut = response.finish_reason in ("length", "content_filter")
    reason = "max_output_tokens" if response.finish_reason == "length" else "content_filter"
    return _head(asked, stamp) | {
        "status": "incomplete" if cut else "completed", "completed_at": None if cut else stamp.at,
        "incomplete_details": {"reason": reason} if cut else None,
        "output": list(_items(response, stamp)), "usage": _usage(response)}


def opening(response: ModelResponse | None, asked: Asked, stamp: Stamp) -> bytes:
    """``response.created`` and ``response.in_progress``, without output."""
    head = _head(asked, stamp)
    return b"".join(_event(name, number, response=head)
                    for number, name in enumerate(("response.created", "response.in_progress")))


def stream(response: ModelResponse, asked: Asked, stamp: Stamp) -> Iterator[bytes]:
    """Each item from ``added`` to ``done``, its parts within, then the whole answer."""
    number = 2
    for index, item in enumerate(_items(response, stamp)):
        for name, data in _told(item):
            yield _event(name, number, output_index=index, **data)
            number += 1
    whole = answer(response, asked, stamp)
    yield _event(f"response.{whole['status']}", number, response=whole)


def _told(item: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of one item."""
    kind, ident = item["type"], {"item_id": item["id"]}
    begun: dict[str, Any] = {"arguments": ""} if kind == "function_call" else {"content": []}
    if "status" in item:
        begun["status"] = "in_progress"
    yield "response.output_item.added", {"item": {**item, **begun}}
    if kind == "function_call":
        yield "response.function_call_arguments.delta", {**ident, "delta": item["arguments"]}
        yield "response.function_call_arguments.done", {**ident, "arguments": item["arguments"], "name": item["name"]}
    else:
        yield from _told_part(item["content"][0], ident, "output_text" if kind == "message" else "reasoning_text")
    yield "response.output_item.done", {"item": item}


def _told_part(part: Mapping[str, Any], ident: Mapping[str, Any], kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of the one part of a message, or of a reasoning."""
    at = {**ident, "content_index": 0}
    more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    if part["text"]:
        yield f"response.{kind}.delta", {**at, "delta": part["text"], **more}
    yield f"response.{kind}.done", {**at, "text": part["text"], **more}
    yield "response.content_part.done", {**at, "part": part}


def _items(response: ModelResponse, stamp: Stamp) -> Iterator[dict[str, Any]]:
    if response.reasoning:
        yield {"type": "reasoning", "id": f"rs_{stamp.id}", "summary": [],
               "content": [{"type": "reasoning_text", "text": response.reasoning}]}
    if response.content or not response.tool_calls:
        part = {"type": "output_text", "text": response.content, "annotations": [], "logprobs": []}
        yield {"type": "message", "id": f"msg_{stamp.id}", "status": "completed", "role": "assistant",
               "content": [part]}
    for index, call in enumerate(response.tool_calls):
        yield {"type": "function_call", "id": f"fc_{stamp.id}_{index}", "status": "completed", "call_id": call.id,
               "name": call.name, "arguments": chat.written(call)}


def failure(failed: Failure) -> dict[str, Any]:
    """A failure, in a body: as chat completions have it, where messages are ``input`` here."""
    return chat.failure(replace(failed, param="input") if failed.param == "messages" else failed)


def broken(failed: Failure, asked: Asked, stamp: Stamp) -> bytes:
    """``response.failed``, as the last event of a stream that has begun."""
    code = failed.code if failed.code == "rate_limit_exceeded" else "server_error"
    error = {"code": code, "message": failed.message, "type": failed.kind, "param": failed.param}
    return _event("response.failed", 2, response=_head(asked, stamp) | {"status": "failed", "error": error})


def _event(name: str, number: int, /, **data: Any) -> bytes:
    return fields.event({"type": name, "sequence_number": number, **data}, name)


def _head(asked: Asked, stamp: Stamp) -> dict[str, Any]:
    return {"id": f"resp_{stamp.id}", "object": "response", "created_at": stamp.at, "status": "in_progress",
            "background": False, "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
            "model": stamp.model, "output": [], "previous_response_id": None, "reasoning": None, "store": False,
            "temperature": None, "text": {"format": {"type": "text"}}, "top_p": None, "truncation": "disabled",
            "usage": None, **asked.again}


def _usage(response: ModelResponse) -> dict[str, Any]:
    return {"input_tokens": response.prompt_tokens, "output_tokens": response.completion_tokens,
            "total_tokens": response.prompt_tokens + response.completion_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0}}
