"""What programs say and are answered, there and back: nothing is lost, and nothing but a refusal is raised."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.gateway import wire
from woodshed.gateway.dialects import Asked, Refused, Stamp, chat
from woodshed.interfaces import ModelRequest, ModelResponse, ToolSpec
from woodshed.model import Message, ModelSpec, ToolCall

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8)
SOUND = st.recursive(st.none() | st.booleans() | st.integers(-2**53, 2**53) | TEXT,
                     lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8)
CALLS = st.builds(ToolCall, id=TEXT.filter(bool), name=TEXT, arguments=st.dictionaries(TEXT, SOUND, max_size=3))
MESSAGES = st.one_of(
    st.builds(Message, role=st.sampled_from(["system", "user"]), content=TEXT),
    st.builds(Message, role=st.just("assistant"), content=TEXT, tool_calls=st.lists(CALLS, max_size=3).map(tuple)),
    st.builds(Message, role=st.just("tool"), content=TEXT, call=TEXT))
TOOLS = st.builds(ToolSpec, name=TEXT, description=TEXT,
                  parameters=st.dictionaries(TEXT, SOUND, min_size=1, max_size=3))
RESPONSES = st.builds(
    ModelResponse, content=TEXT, tool_calls=st.lists(CALLS, max_size=3).map(tuple),
    finish_reason=st.sampled_from(["stop", "length", "tool_calls"]), prompt_tokens=st.integers(0, 10**9),
    completion_tokens=st.integers(0, 10**9))
ASKED = Asked(ModelRequest(()))
STAMP, SPEC = Stamp("1", 0, "m"), ModelSpec(name="m", base_url="http://127.0.0.1/v1")
NAMES = ["messages", "tools", "stop", "n", "stream", "stream_options", "max_tokens", "max_completion_tokens", "model",
         "temperature", "seed", "tool_choice", "functions", "user"]


@settings(max_examples=40, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=5), st.lists(TOOLS, max_size=3), st.lists(TEXT.filter(bool), max_size=3),
       st.integers(1, 2048))
def test_what_is_sent_on_is_what_was_asked(
    messages: list[Message], tools: list[ToolSpec], stop: list[str], most: int
) -> None:
    """A request written by our own wire is read as itself."""
    request = ModelRequest(tuple(messages), tuple(tools), tuple(stop), most)
    body = json.loads(json.dumps(wire.body(request, SPEC, 0)))
    found = chat.read(body, {}).request
    assert (found.messages, found.tools, found.stop, found.max_tokens) == (
        request.messages, request.tools, request.stop, most)


@settings(max_examples=40, deadline=None)
@given(RESPONSES)
def test_an_answer_is_read_as_it_was_given(response: ModelResponse) -> None:
    """What a program gets, our own client would read as what the model said."""
    read = wire.answer(json.dumps(chat.answer(response, ASKED, STAMP)).encode(), 0.0)
    assert (read.content, read.tool_calls, read.prompt_tokens, read.completion_tokens) == (
        response.content, response.tool_calls, response.prompt_tokens, response.completion_tokens)
    assert read.finish_reason == ("tool_calls" if response.tool_calls and response.finish_reason == "stop"
                                  else response.finish_reason)


@settings(max_examples=40, deadline=None)
@given(RESPONSES, st.booleans())
def test_a_stream_says_what_the_answer_says(response: ModelResponse, usage: bool) -> None:
    """The parts of a stream, put together as SDKs do, are the whole answer."""
    asked = Asked(ModelRequest(()), stream=True, usage=usage)
    events = (chat.opening(None, asked, STAMP) + b"".join(chat.stream(response, asked, STAMP))).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    whole = chat.answer(response, ASKED, STAMP)
    told = chunks.pop()["usage"] if usage else whole["usage"]
    assert told == whole["usage"]
    message = whole["choices"][0]["message"]
    text, calls = joined(chunk["choices"][0]["delta"] for chunk in chunks)
    assert text == (message["content"] or "")
    assert calls == message.get("tool_calls", [])
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


def joined(deltas: Iterable[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    text, calls = "", list[dict[str, Any]]()
    for delta in deltas:
        text += delta.get("content", "")
        for part in delta.get("tool_calls", []):
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "type": part["type"], "function": {**part["function"]}})
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return text, calls


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES) | TEXT, JSON, max_size=6) | st.fixed_dictionaries(
    {"messages": st.lists(st.dictionaries(
        st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "name"]),
        JSON | st.sampled_from(["user", "assistant", "tool"]), max_size=5) | JSON, min_size=1, max_size=3)},
    optional={"tools": st.lists(JSON, max_size=2), "stop": JSON, "max_tokens": JSON}))
def test_anything_is_read_or_refused(body: dict[str, Any]) -> None:
    """Whatever a body holds, reading it raises nothing but a refusal, and what is read can be recorded and sent."""
    try:
        asked = chat.read(body, {})
    except Refused:
        return
    json.dumps(wire.body(asked.request, SPEC, 0), allow_nan=False).encode()
    json.dumps(dict(asked.request.asked), allow_nan=False).encode()
