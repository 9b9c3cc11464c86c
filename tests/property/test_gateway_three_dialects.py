"""One conversation and one answer in three dialects: the same is understood, and the same is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spoken
from woodshed.gateway import wire
from woodshed.gateway.dialects import Asked, Failure, Refused, Stamp, chat, messages, responses
from woodshed.gateway.estimate import estimate
from woodshed.interfaces import ModelRequest, ModelResponse, ToolSpec
from woodshed.model import Message, ModelSpec, ToolCall

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAME = TEXT.filter(bool)
SOUND = st.recursive(st.none() | st.booleans() | st.integers(-2**53, 2**53) | TEXT,
                     lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2), max_leaves=5)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8)
CALLS = st.lists(st.builds(ToolCall, id=NAME, name=NAME, arguments=st.dictionaries(TEXT, SOUND, max_size=2)),
                 max_size=2).map(tuple)
BAD = st.builds(lambda ident, name, raw: ToolCall(id=ident, name=name, raw=raw, error="bad"), NAME, NAME,
                st.sampled_from(["{", '{"command": "l', "[1]", "NaN", "rm -rf"]))
TOOLS = st.lists(st.builds(ToolSpec, name=NAME, description=TEXT,
                           parameters=st.dictionaries(TEXT, SOUND, min_size=1, max_size=2)), max_size=2)
ANSWERS = st.builds(
    ModelResponse, content=TEXT, tool_calls=CALLS, finish_reason=st.sampled_from(["stop", "length"]),
    prompt_tokens=st.integers(0, 10**6), completion_tokens=st.integers(0, 10**6), reasoning=TEXT)
STAMP, SPEC = Stamp("1", 7, "m"), ModelSpec(name="m", base_url="http://127.0.0.1/v1")
ASKED = Asked(ModelRequest((Message(role="user", content="hi"),)), usage=True)
DIALECTS = {"chat": chat, "responses": responses, "messages": messages}
Says = Callable[..., dict[str, Any]]
SAYS: Mapping[str, Says] = {
    "chat": spoken.in_chat, "responses": spoken.in_responses, "messages": spoken.in_messages}
HEARS: Mapping[str, Callable[[Mapping[str, Any]], ModelResponse]] = {
    "chat": spoken.of_chat, "responses": spoken.of_responses, "messages": spoken.of_messages}
each = pytest.mark.parametrize("name", DIALECTS)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """As protocols allow it: each call is answered, and a user or a result comes last."""
    told = [Message(role="system", content=draw(NAME))] if draw(st.booleans()) else []
    told.append(Message(role="user", content=draw(NAME)))
    for _ in range(draw(st.integers(0, 3))):
        calls = draw(CALLS)
        told.append(Message(role="assistant", content=draw(TEXT), tool_calls=calls, reasoning=draw(TEXT)))
        told += [Message(role="tool", call=call.id, content=draw(TEXT)) for call in calls]
        if not calls or draw(st.booleans()):
            told.append(Message(role="user", content=draw(NAME)))
    return told


@settings(max_examples=60, deadline=None)
@given(conversations(), TOOLS, st.none() | st.integers(1, 2048))
def test_one_conversation_is_one_request(told: list[Message], tools: list[ToolSpec], most: int | None) -> None:
    """The same conversation, tools and length, said in any dialect, is the same ModelRequest."""
    for name, dialect in DIALECTS.items():
        body = json.loads(json.dumps(SAYS[name](told, tools, most)))
        found = dialect.read(body, {}).request
        assert list(found.messages) == told, name
        assert list(found.tools) == tools, name
        assert found.max_tokens == most, name
        assert found.asked["model"] == "m"


CHOICES = {
    "auto": ({"type": "auto"}, "auto"), "required": ({"type": "any"}, "required"), "none": ({"type": "none"}, "none"),
    "f": ({"type": "tool", "name": "f"}, {"type": "function", "name": "f"})}


@pytest.mark.parametrize("choice", CHOICES)
def test_one_choice_of_tools_is_one(choice: str) -> None:
    """Which tool must be called, how much is thought, and the answer's form are recorded by one name."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    anthropic, flat = CHOICES[choice]
    told = flat if isinstance(flat, str) else {"type": "function", "function": {"name": "f"}}
    bodies: dict[str, dict[str, Any]] = {
        "chat": {"tool_choice": told, "parallel_tool_calls": False, "temperature": 0.5, "reasoning_effort": "low",
                 "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}},
        "responses": {"tool_choice": flat, "parallel_tool_calls": False, "temperature": 0.5,
                      "reasoning": {"effort": "low"},
                      "text": {"format": {"type": "json_schema", "name": "answer", "schema": schema}}},
        "messages": {"tool_choice": {**anthropic, "disable_parallel_tool_use": True}, "temperature": 0.5,
                     "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": schema}}}}
    sent = [wire.effective(DIALECTS[name].read(SAYS[name]([Message(role="user", content="x")],
                                                          [ToolSpec("f", "", {"type": "object"})]) | body, {}).request,
                           SPEC) for name, body in bodies.items()]
    assert sent[0] == sent[1] == sent[2]
    assert sent[0]["tool_choice"] == told
    assert sent[0]["parallel_tool_calls"] is False


@each
@settings(max_examples=40, deadline=None)
@given(response=ANSWERS, bad=st.lists(BAD, max_size=1))
def test_an_answer_is_heard_as_it_was_given(name: str, response: ModelResponse, bad: list[ToolCall]) -> None:
    """What a program of any dialect hears is what the model said, calls that it wrote badly included."""
    response = ModelResponse(response.content, (*response.tool_calls, *bad), response.finish_reason,
                             response.prompt_tokens, response.completion_tokens, reasoning=response.reasoning)
    heard = HEARS[name](json.loads(json.dumps(DIALECTS[name].answer(response, ASKED, STAMP))))
    calls = response.tool_calls
    assert (heard.content, heard.reasoning, heard.prompt_tokens, heard.completion_tokens) == (
        response.content, response.reasoning, response.prompt_tokens, response.completion_tokens)
    assert [(call.id, call.name, call.arguments, call.raw) for call in heard.tool_calls] == [
        (call.id, call.name, call.arguments, call.raw) for call in calls]
    assert heard.finish_reason == ("length" if response.finish_reason == "length" else
                                   "tool_calls" if calls else "stop")


@each
@settings(max_examples=30, deadline=None)
@given(response=ANSWERS, early=st.booleans())
def test_a_stream_tells_what_the_answer_tells(name: str, response: ModelResponse, early: bool) -> None:
    """The events of each protocol, in its order, put together make the whole answer, begun early or not."""
    dialect = DIALECTS[name]
    stream = dialect.opening(None if early else response, ASKED, STAMP) + dialect.ALIVE + b"".join(
        dialect.stream(response, ASKED, STAMP))
    told, whole = spoken.events(stream), json.loads(json.dumps(dialect.answer(response, ASKED, STAMP)))
    if name == "messages":
        assert told[-1] == {"type": "message_stop"}
        assert spoken.joined_messages(told) == whole
    elif name == "responses":
        assert spoken.joined_responses(told) == whole["output"]
        assert told[-1]["response"] == whole
        assert told[-1]["type"] == ("response.incomplete" if response.finish_reason == "length"
                                    else "response.completed")
    else:
        assert told[0]["choices"][0]["delta"]["role"] == "assistant"
        assert "".join(one["choices"][0]["delta"].get("reasoning_content", "") for one in told[:-1]) == (
            response.reasoning)


@each
@settings(max_examples=30, deadline=None)
@given(told=conversations(), response=ANSWERS)
def test_an_answer_given_back_is_the_assistants_turn(name: str, told: list[Message], response: ModelResponse) -> None:
    """A program that sends an answer back as it got it has said the assistant's message, word for word."""
    dialect, body = DIALECTS[name], SAYS[name](told)
    answer = json.loads(json.dumps(dialect.answer(response, ASKED, STAMP)))
    if name == "responses":
        body["input"] += [*answer["output"], {"role": "user", "content": "on"}]
    else:
        message = answer if name == "messages" else answer["choices"][0]["message"]
        body["messages"] += [{"role": "assistant", **message} if name == "chat" else
                             {"role": "assistant", "content": message["content"]}, {"role": "user", "content": "on"}]
    found = list(dialect.read(body, {}).request.messages)
    assert found[:-2] == told
    assert found[-2] == ASKED.conversation(response)[-1]


KEYS = st.sampled_from([
    "messages", "input", "tools", "system", "instructions", "stop", "stop_sequences", "max_tokens", "tool_choice",
    "max_output_tokens", "previous_response_id", "reasoning", "output_config", "cache_control", "model", "text"])
INNER = st.dictionaries(st.sampled_from(["role", "content", "type", "text", "tool_use_id", "call_id", "output", "input",
                                         "id", "name", "arguments", "thinking", "summary", "source", "input_schema"]),
                        JSON | st.sampled_from(["user", "assistant", "tool_result", "tool_use", "function_call",
                                                "function_call_output", "reasoning", "text", "thinking", "image"]),
                        max_size=5)


@each
@settings(max_examples=60, deadline=None)
@given(body=st.dictionaries(KEYS | TEXT, JSON | st.lists(INNER | st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": st.lists(INNER, max_size=3)}), max_size=3), max_size=5))
def test_anything_is_understood_or_refused(name: str, body: dict[str, Any]) -> None:
    """Reading a body raises nothing but a refusal; what is understood can be recorded, sent, counted and answered."""
    dialect: ModuleType = DIALECTS[name]
    try:
        asked = dialect.read(body, {"anthropic-version": "2023-06-01"})
    except Refused:
        return
    json.dumps(wire.body(asked.request, SPEC, 0), allow_nan=False).encode()
    json.dumps(dict(asked.request.asked), allow_nan=False).encode()
    assert estimate(asked.request, None) > 0
    json.dumps(dialect.answer(ModelResponse("hi"), asked, STAMP)).encode()
    assert dialect.opening(None, asked, STAMP) + dialect.broken(Failure(500, "k", "m"), asked, STAMP)
