"""Run by a Python that has the SDKs ``openai`` and ``anthropic``: what a program that uses them does, and what it got.

usage: sdkcalls.py SCENE URL KEY DIALECT [stream]; prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


class Late:
    """A module that is loaded when it is needed: each takes a second."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


openai, anthropic = Late("openai"), Late("anthropic")
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
SYSTEM, ASK, MOST = "be brief", "what is here?", 200
DIALECTS = ("chat", "responses", "messages")


def client(dialect: str, url: str, key: str, **given: Any) -> Any:
    if dialect == "messages":
        return anthropic.Anthropic(base_url=url, api_key=key, **given)
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, **given)


def valid(kind: Any, found: Any) -> Any:
    """``found``, which must be what the SDK's own types say, and not only look so."""
    adapter = import_module("pydantic").TypeAdapter(kind)
    adapter.validate_python(found.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False))
    return found


def result(command: str) -> str:
    """What the one tool answers."""
    return f"output of {command}"


# -- a conversation with tools, by each SDK ----------------------------------------------------------------------------


def chat(one: Any, streamed: bool) -> list[str]:
    told: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASK}]
    tools = [{"type": "function", "function": {"name": "bash", "description": "runs", "parameters": SCHEMA}}]
    said = []
    while True:
        given = {"model": "m", "messages": told, "tools": tools, "max_completion_tokens": MOST}
        if streamed:
            with one.chat.completions.stream(**given, stream_options={"include_usage": True}) as stream:
                for event in stream:
                    if event.type == "chunk":
                        valid(openai.types.chat.ChatCompletionChunk, event.chunk)
                done = stream.get_final_completion()
        else:
            done = valid(openai.types.chat.ChatCompletion, one.chat.completions.create(**given))
        message, usage = done.choices[0].message, done.usage
        said.append(f"{message.content or ''}/{done.choices[0].finish_reason}/{usage.total_tokens}")
        if not message.tool_calls:
            return said
        told.append({"role": "assistant", "content": message.content,
                     "reasoning_content": getattr(message, "reasoning_content", None),
                     "tool_calls": [{"id": call.id, "type": "function", "function": {
                         "name": call.function.name, "arguments": call.function.arguments}}
                         for call in message.tool_calls]})
        told += [{"role": "tool", "tool_call_id": call.id,
                  "content": result(json.loads(call.function.arguments)["command"])} for call in message.tool_calls]


def responses(one: Any, streamed: bool, *, by_id: bool = False) -> list[str]:
    told: list[Any] = [{"role": "user", "content": ASK}]
    tools = [{"type": "function", "name": "bash", "description": "runs", "parameters": SCHEMA, "strict": False}]
    said, before = [], None
    kinds = openai.types.responses
    while True:
        given = {"model": "m", "input": told, "tools": tools, "max_output_tokens": MOST, "instructions": SYSTEM,
                 **({"previous_response_id": before} if before else {})}
        if streamed:
            with one.responses.stream(**given) as stream:
                for event in stream:
                    if event.type not in ("response.output_text.delta", "response.function_call_arguments.delta"):
                        valid(kinds.ResponseStreamEvent, event)
                done = stream.get_final_response()
        else:
            done = valid(kinds.Response, one.responses.create(**given))
        calls = [item for item in done.output if item.type == "function_call"]
        said.append(f"{done.output_text}/{'tool_calls' if calls else 'stop'}/{done.usage.total_tokens}")
        if not calls:
            return said
        outputs = [{"type": "function_call_output", "call_id": call.call_id,
                    "output": result(json.loads(call.arguments)["command"])} for call in calls]
        told = outputs if by_id else [*told, *(item.to_dict() for item in done.output), *outputs]
        before = done.id if by_id else None


def messages(one: Any, streamed: bool) -> list[str]:
    told: list[Any] = [{"role": "user", "content": ASK}]
    tools = [{"name": "bash", "description": "runs", "input_schema": SCHEMA}]
    said = []
    while True:
        given = {"model": "m", "messages": told, "tools": tools, "max_tokens": MOST,
                 "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]}
        if streamed:
            with one.messages.stream(**given) as stream:
                for event in stream:
                    if event.type in ("message_start", "message_delta", "content_block_start", "content_block_delta"):
                        valid(anthropic.types.RawMessageStreamEvent, event)
                done = stream.get_final_message()
        else:
            done = valid(anthropic.types.Message, one.messages.create(**given))
        text = "".join(block.text for block in done.content if block.type == "text")
        calls = [block for block in done.content if block.type == "tool_use"]
        stop = {"tool_use": "tool_calls", "end_turn": "stop"}[done.stop_reason]
        said.append(f"{text}/{stop}/{done.usage.input_tokens + done.usage.output_tokens}")
        if not calls:
            return said
        told += [{"role": "assistant", "content": [block.to_dict() for block in done.content]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                               "content": result(call.input["command"])} for call in calls]}]


TALKS: dict[str, Callable[..., list[str]]] = {"chat": chat, "responses": responses, "messages": messages}


def asked(dialect: str, one: Any, *, stream: bool = False) -> str:
    """One question, in the SDK's plainest way; what was said."""
    user = [{"role": "user", "content": "hello"}]
    if dialect == "chat":
        done = one.chat.completions.create(model="m", messages=user, stream=stream)
        return "".join(chunk.choices[0].delta.content or "" for chunk in done) if stream else str(
            done.choices[0].message.content)
    if dialect == "responses":
        done = one.responses.create(model="m", input="hello", stream=stream)
        return "".join(event.delta for event in done if event.type == "response.output_text.delta") if stream else str(
            done.output_text)
    done = one.messages.create(model="m", messages=user, max_tokens=9, stream=stream)
    return "".join(event.delta.text for event in done if event.type == "content_block_delta") if stream else str(
        done.content[0].text)


def failure(dialect: str, one: Any, **given: Any) -> str:
    """The SDK's class of what went wrong, and its status and code."""
    try:
        return asked(dialect, one, **given)
    except (anthropic if dialect == "messages" else openai).APIError as error:
        body = error.body if isinstance(error.body, dict) else {}
        kind = body.get("code") or (body.get("error") or {}).get("type")
        return f"{type(error).__name__} {getattr(error, 'status_code', None)} {kind}"


def scene(name: str, url: str, key: str, dialect: str, streamed: bool) -> Any:
    if name == "talk":
        return TALKS[dialect](client(dialect, url, key), streamed)
    if name == "by_id":
        return responses(client("responses", url, key), streamed, by_id=True)
    if name == "patient":  # the answer takes longer than the SDK waits
        return asked(dialect, client(dialect, url, key, timeout=0.5, max_retries=4), stream=streamed)
    if name == "fails":
        return failure(dialect, client(dialect, url, key, max_retries=2), stream=streamed)
    if name == "once":
        return failure(dialect, client(dialect, url, key, max_retries=0), stream=streamed)
    if name == "failures":
        return [failure(dialect, client(dialect, url, key, max_retries=0)),
                *(failure(dialect, client(dialect, url, key), stream=stream) for stream in (True, False, False)),
                failure(dialect, client(dialect, url, "wrong"))]
    assert name == "counted"
    one = client("messages", url, key)
    return [one.messages.count_tokens(model="m", messages=[{"role": "user", "content": "hello"}]).input_tokens,
            [model.id for model in one.models.list()], [model.id for model in client("chat", url, key).models.list()]]


if __name__ == "__main__":
    name, url, key, dialect = sys.argv[1:5]
    print(json.dumps(scene(name, url, key, dialect, "stream" in sys.argv)))
