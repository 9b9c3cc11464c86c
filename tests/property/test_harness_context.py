"""Properties of the conversation: it fits, keeps what matters, stays a conversation, and loses nothing for good."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from scripted import a_task
from woodshed.harness.context import Conversation
from woodshed.harness.dialects import named
from woodshed.harness.kit import Kit
from woodshed.harness.shelf import Shelf
from woodshed.harness.tokens import weigh
from woodshed.harness.tools import DEFAULT_TOOLS
from woodshed.interfaces import Acting, ModelResponse, Sandbox, ToolResult, ToolSpec
from woodshed.model import Agent, EventKind, ModelSpec, Sampling, ToolCall

TASK = a_task(Path("/nowhere"), instruction="The task itself, which must never be lost.")
SPECS: list[ToolSpec] = [maker(Kit(TASK)).spec for maker in DEFAULT_TOOLS]
TURNS = st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 30_000), st.booleans()), max_size=12)
Events = list[tuple[EventKind, Any]]


def conversation(dialect: str, window: int | None, events: Events) -> tuple[Conversation, Kit]:
    def emit(kind: EventKind, data: Mapping[str, Any]) -> None:
        events.append((kind, json.loads(json.dumps(data))))

    spec = ModelSpec(name="m", base_url="http://x/v1", context_tokens=window, sampling=Sampling(max_tokens=1000))
    acting = Acting(task=TASK, agent=Agent(name="a", harness="loop", model=spec, dialect=dialect),
                    sandbox=cast(Sandbox, None), model=None, emit=emit, seed=0, deadline_s=1.0)
    kit = Kit(TASK, Shelf(), emit)
    return Conversation(acting, named(dialect), SPECS, kit), kit


def speak(talk: Conversation, kit: Kit, said: int, shown: int, native: bool) -> str:
    """One turn: an answer of ``said`` characters with a call, and an output of ``shown`` characters, kept whole."""
    call = ToolCall(id="x", name="bash", arguments={"command": "c" * said})
    content = "" if native else f"```bash\n{'c' * said or 'c'}\n```"
    reading = talk.hear(ModelResponse(content, tool_calls=(call,) if native else ()))
    for each in reading.calls:
        output = f"{each.id} " + "o" * shown
        kit.shelf.keep(each.id, output)
        talk.observe(each, ToolResult(output[:kit.fitting(output)], exit_code=0))
    return reading.calls[0].id


@settings(deadline=None, max_examples=50)
@given(TURNS, st.integers(2500, 20_000), st.sampled_from(["auto", "text"]))
def test_requests_fit_the_window_and_keep_what_matters(
    turns: list[tuple[int, int, bool]], window: int, dialect: str
) -> None:
    """System prompt and task always stand first, every request fits, and every output can still be read."""
    events: Events = []
    talk, kit = conversation(dialect, window, events)
    system = talk.messages[0]
    outputs: list[str] = []
    for said, shown, native in turns:
        outputs.append(speak(talk, kit, said, shown, native and dialect == "auto"))
        request = talk.request(None)
        assert request.messages[0] == system
        assert request.messages[1].content.startswith(TASK.instruction)
        assert request.max_tokens is not None
        assert 64 <= request.max_tokens <= 1000
        assert talk.tokens() + request.max_tokens <= window
        roles = [message.role for message in request.messages[1:] if message.role != "tool"]
        assert all(one != two for one, two in pairwise(roles) if one == "user")
        asked = [call.id for message in request.messages for call in message.tool_calls]
        assert len(set(asked)) == len(asked)
        assert [message.call for message in request.messages if message.role == "tool"] == asked
        for handle in outputs:
            whole = kit.shelf.text(handle)
            assert whole is not None
            assert whole.startswith(f"{handle} ")
    told = [data for kind, data in events if kind is EventKind.COMPACTION]
    assert all(data["outputs"] or data["turns"] or data["words"] for data in told)
    assert all(kit.shelf.text(handle) is not None for data in told
               for name in ("outputs", "turns", "words") for handle in data[name])


@settings(deadline=None, max_examples=50)
@given(TURNS)
def test_shrinking_ends(turns: list[tuple[int, int, bool]]) -> None:
    """Asked to shrink again and again, a conversation gets smaller each time and at last says that it cannot."""
    talk, kit = conversation("auto", None, [])
    for said, shown, native in turns:
        speak(talk, kit, said, shown, native)
    for _ in range(40):
        size = talk.tokens()
        if not talk.shrink():
            break
        assert talk.tokens() < size
    else:
        raise AssertionError("it shrinks for ever")


@settings(deadline=None, max_examples=30)
@given(TURNS, st.integers(2500, 9000))
def test_the_same_answers_make_the_same_conversation(turns: list[tuple[int, int, bool]], window: int) -> None:
    """What is said, and what is left out, is a function of the answers and results alone."""
    first: list[Any] = []
    again: list[Any] = []
    for events in (first, again):
        talk, kit = conversation("auto", window, events)
        for said, shown, native in turns:
            speak(talk, kit, said, shown, native)
            events.append(("request", [message.to_json() for message in talk.request(None).messages]))
    assert first == again


@given(st.text(max_size=300), st.text(max_size=300))
def test_weights_add_up(one: str, two: str) -> None:
    """The weight of a whole is at most that of its parts, and no text but blanks weighs nothing."""
    assert weigh(one + two) <= weigh(one) + weigh(two)
    assert weigh(one) > 0 or not one.strip() or one.isspace()
