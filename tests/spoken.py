"""A conversation as programs of each dialect say it, and what they make of an answer: the other side of the server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from woodshed.gateway import wire
from woodshed.interfaces import ModelResponse, ToolSpec
from woodshed.model import Message, ToolCall, written_call


def in_chat(messages: Sequence[Message], tools: Sequence[ToolSpec] = (), most: int | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "messages": [wire.message_json(message) for message in messages]}
    return body | ({"tools": [wire.tool_json(tool) for tool in tools]} if tools else {}) | _most("max_tokens", most)


def in_messages(messages: Sequence[Message], tools: Sequence[ToolSpec] = (), most: int | None = None) -> dict[str, Any]:
    """A system prompt in front, and the results of calls in one user's message with what the user says next."""
    body: dict[str, Any] = {"model": "m", "messages": []}
    for message in messages:
        if message.role == "system" and not body["messages"] and "system" not in body:
            body["system"] = [{"type": "text", "text": message.content, "cache_control": {"type": "ephemeral"}}]
            continue
        role = "user" if message.role == "tool" else message.role
        said = body["messages"]
        if role == "user" and said and said[-1]["role"] == "user" and said[-1]["content"][-1]["type"] == "tool_result":
            said[-1]["content"] += _blocks(message)
        else:
            said.append({"role": role, "content": _blocks(message)})
    return body | ({"tools": [_anthropic(tool) for tool in tools]} if tools else {}) | _most("max_tokens", most)


def _blocks(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": message.call, "content": message.content}]
    thought = [{"type": "thinking", "thinking": message.reasoning, "signature": "s"}] if message.reasoning else []
    said = [{"type": "text", "text": message.content}] if message.content or not message.tool_calls else []
    return [*thought, *said, *({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
                               for call in message.tool_calls)]


def _anthropic(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}


def in_responses(
    messages: Sequence[Message], tools: Sequence[ToolSpec] = (), most: int | None = None
) -> dict[str, Any]:
    """The first system message as instructions, the rest as items."""
    body: dict[str, Any] = {"model": "m", "input": [item for message in messages for item in _items(message)]}
    if messages[0].role == "system":
        body["instructions"] = messages[0].content
        body["input"] = body["input"][1:]
    offered = [{"type": "function", "name": tool.name, "description": tool.description,
                "parameters": dict(tool.parameters), "strict": tool.strict} for tool in tools]
    return body | ({"tools": offered} if tools else {}) | _most("max_output_tokens", most)


def _items(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.call, "output": message.content}]
    kind = "output_text" if message.role == "assistant" else "input_text"
    items: list[dict[str, Any]] = []
    if message.reasoning:
        items.append({"type": "reasoning", "id": "rs", "summary": [],
                      "content": [{"type": "reasoning_text", "text": message.reasoning}]})
    if message.content or not message.tool_calls:
        items.append({"type": "message", "role": message.role, "content": [{"type": kind, "text": message.content}]})
    return items + [{"type": "function_call", "call_id": call.id, "name": call.name,
                     "arguments": json.dumps(call.arguments)} for call in message.tool_calls]


def _most(name: str, most: int | None) -> dict[str, int]:
    return {} if most is None else {name: most}


# -- answers -----------------------------------------------------------------------------------------------------------


def of_chat(answer: Mapping[str, Any]) -> ModelResponse:
    return wire.answer(json.dumps(answer).encode(), 0.0)


def of_messages(answer: Mapping[str, Any]) -> ModelResponse:
    blocks, usage = answer["content"], answer["usage"]
    stop = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}[answer["stop_reason"]]
    calls = [ToolCall(id=one["id"], name=one["name"], arguments=one["input"]) if one["input"].keys() != {"INVALID_JSON"}
             else written_call(one["id"], one["name"], one["input"]["INVALID_JSON"])
             for one in blocks if one["type"] == "tool_use"]
    return ModelResponse(
        "".join(one["text"] for one in blocks if one["type"] == "text"), tuple(calls), stop, usage["input_tokens"],
        usage["output_tokens"], reasoning="".join(one["thinking"] for one in blocks if one["type"] == "thinking"))


def of_responses(answer: Mapping[str, Any]) -> ModelResponse:
    items, usage = answer["output"], answer["usage"]
    calls = tuple(written_call(one["call_id"], one["name"], one["arguments"]) for one in items
                  if one["type"] == "function_call")
    texts = {kind: "".join(part["text"] for one in items if one["type"] == kind for part in one["content"])
             for kind in ("message", "reasoning")}
    finish = "length" if answer["status"] == "incomplete" else "tool_calls" if calls else "stop"
    return ModelResponse(texts["message"], calls, finish, usage["input_tokens"], usage["output_tokens"],
                         reasoning=texts["reasoning"])


def events(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream, without its comments; each is named by its type where it has a name."""
    found = []
    for block in stream.decode().split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if lines and lines["data"] != "[DONE]":
            found.append(data := json.loads(lines["data"]))
            assert lines.get("event") == (data["type"] if "event" in lines else None)
    return found


def joined_messages(told: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The message that events make, as the SDK puts them together; also that they come in the protocol's order."""
    whole: dict[str, Any] = {}
    for event in told:
        match event["type"]:
            case "message_start":
                assert not whole
                whole = dict(event["message"])
            case "content_block_start":
                assert event["index"] == len(whole["content"])
                whole["content"].append({**event["content_block"], "json": ""})
            case "content_block_delta":
                block, delta = whole["content"][event["index"]], event["delta"]
                for name, key in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                    if name in delta:
                        block[key] += delta[name]
                block["signature"] = delta.get("signature", block.get("signature"))
            case "content_block_stop":
                block = whole["content"][event["index"]]
                if block["type"] == "tool_use":
                    block["input"] = json.loads(block["json"])
                _only(block, {"text": ["type", "text"], "thinking": ["type", "thinking", "signature"],
                              "tool_use": ["type", "id", "name", "input"]}[block["type"]])
            case "message_delta":
                whole |= event["delta"]
                whole["usage"] = dict(event["usage"])
            case kind:
                assert kind in ("ping", "message_stop")
    return whole


def _only(block: dict[str, Any], names: Sequence[str]) -> None:
    for name in block.keys() - set(names):
        del block[name]


def joined_responses(told: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The items that events make before the last, which holds all of them; also that they come in order."""
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    for event in told[2:-1]:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(items)
                items.append(json.loads(json.dumps(event["item"])))
            case "content_part.added":
                items[-1]["content"].append(dict(event["part"]))
            case "output_text.delta" | "reasoning_text.delta":
                items[-1]["content"][event["content_index"]]["text"] += event["delta"]
            case "function_call_arguments.delta":
                items[-1]["arguments"] += event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert event["text"] == items[-1]["content"][0]["text"]
            case "function_call_arguments.done":
                assert event["arguments"] == items[-1]["arguments"]
            case "content_part.done":
                assert event["part"] == items[-1]["content"][0]
            case kind:
                assert kind == "output_item.done"
                assert {**items[-1], "status": None} == {**event["item"], "status": None} | (
                    {} if "status" in event["item"] else {"status": None})
                items[-1] = dict(event["item"])
    return items
