"""Properties of the conversation: it fits where it can, keeps what matters, and stays a conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from scripted import a_task
from woodshed.harness.context import Conversation
from woodshed.harness.dialects import named
from woodshed.harness.tools import DEFAULT_TOOLS
from woodshed.interfaces import Acting, ModelResponse, Sandbox, ToolResult
from woodshed.model import Agent, EventKind, ModelSpec, Sampling, ToolCall

TASK = a_task(Path("/nowhere"), instruction="The task itself, which must never be lost.")
SPECS = [maker(TASK).spec for maker in DEFAULT_TOOLS]
TURNS = st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 30_000), st.booleans()), max_size=12)


def conversation(dialect: str, window: int | None, events: list[tuple[EventKind, Any]]) -> Conversation:
    def emit(kind: EventKind, data: Mapping[str, Any]) -> None:
        events.append((kind, json.loads(json.dumps(data))))

    spec = ModelSpec(name="m", base_url="http://x/v1", context_tokens=window, sampling=Sampling(max_tokens=1000))
    acting = Acting(task=TASK, agent=Agent(name="a", harness="loop", model=spec, dialect=dialect),
                    sandbox=cast(Sandbox, None), model=None, emit=emit, seed=0, deadline_s=1.0)
    return Conversation(acting, named(dialect), SPECS)


def speak(talk: Conversation, said: int, shown: int, native: bool) -> None:
    """One turn: an answer of ``said`` characters with a call, and an output of ``shown`` characters."""
    call = ToolCall(id="x", name="bash", arguments={"command": "c" * said})
    content = "" if native else f"```bash\n{'c' * said or 'c'}\n```"
    reading = talk.hear(ModelResponse(content, tool_calls=(call,) if native else ()))
    for each in reading.calls:
        talk.observe(each, ToolResult("o" * shown, exit_code=0))


@settings(deadline=None)
@given(TURNS, st.integers(2500, 20_000), st.sampled_from(["auto", "text"]))
def test_requests_fit_the_window_and_keep_what_matters(
    turns: list[tuple[int, int, bool]], window: int, dialect: str
) -> None:
    """Task, system prompt and the last two turns are whole; older ones give way until the request fits."""
    events: list[tuple[EventKind, Any]] = []
    talk = conversation(dialect, window, events)
    first = talk.messages[:2]
    for said, shown, native in turns:
        speak(talk, said, shown, native and dialect == "auto")
        before = list(talk.messages)
        request = talk.request(None)
        assert list(request.messages[:2]) == first
        assert list(request.messages[-4:]) == before[-4:]
        assert request.max_tokens is not None
        assert 64 <= request.max_tokens <= 1000
        old = request.messages[2:-4]
        fits = talk.size() <= (window - min(1000, window // 2)) * 3.5
        assert fits or all(len(message.content) <= 700 for message in old)
        asked = [call.id for message in request.messages for call in message.tool_calls]
        assert len(set(asked)) == len(asked)
        assert [message.call for message in request.messages if message.role == "tool"] == asked


@settings(deadline=None)
@given(TURNS)
def test_shrinking_ends(turns: list[tuple[int, int, bool]]) -> None:
    """Asked to shrink again and again, a conversation gets smaller each time and at last says that it cannot."""
    talk = conversation("auto", None, [])
    for said, shown, native in turns:
        speak(talk, said, shown, native)
    for _ in range(40):
        size = talk.size()
        if not talk.shrink():
            break
        assert talk.size() < size
    else:
        raise AssertionError("it shrinks for ever")
