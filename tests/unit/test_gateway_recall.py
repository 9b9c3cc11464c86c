"""Calls that an earlier execution made: answered from its record, never sent, and the next ones go on from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scripted import Script, said, served
from woodshed.errors import ContextExceeded, ModelFault, StoreFault
from woodshed.gateway.call import Patience
from woodshed.gateway.client import Gateway
from woodshed.interfaces import ModelRequest, ModelResponse
from woodshed.model import Answer, EventKind, Message, ModelSpec, ToolCall

Events = list[tuple[EventKind, dict[str, Any]]]


class Louder:
    """An interceptor that shows that it saw a call and its answer."""

    async def before(self, request: ModelRequest) -> ModelRequest:
        return request

    async def after(self, request: ModelRequest, response: ModelResponse) -> ModelResponse:
        return ModelResponse(response.content.upper(), response.tool_calls)


def asked(*texts: str) -> ModelRequest:
    return ModelRequest(messages=[Message(role="user", content=text) for text in texts])


async def test_known_answers_are_not_asked_for_and_the_next_call_goes_on() -> None:
    """Two calls from the record, seen by interceptors; the third is sent with the third's number and seed."""
    events: Events = []

    def emit(kind: EventKind, data: Mapping[str, Any]) -> None:
        events.append((kind, dict(data)))

    past = (
        Answer(call="m00001", content="first", tool_calls=(ToolCall(id="x", name="bash"),)),
        Answer(call="m00002", content="too long", fault="ContextExceeded"),
    )
    script = Script([said("third")])
    async with served(script) as url:
        gateway = Gateway([Louder()])
        model = gateway.client(ModelSpec(name="m", base_url=url), emit, seed=100, past=past)
        first = await model.call(asked("a"))
        assert (first.content, first.tool_calls[0].name) == ("FIRST", "bash")
        with pytest.raises(ContextExceeded, match="too long"):
            await model.call(asked("a", "b"))
        assert events == []
        assert (await model.call(asked("a", "c"))).content == "THIRD"
        await gateway.close()
    assert [request["seed"] for request in script.requests] == [102]
    [(_, intent), (_, result)] = events
    assert (intent["call"], result["call"]) == ("m00003", "m00003")
    assert (intent["kept"], [message["content"] for message in intent["messages"]]) == (1, ["c"])


async def test_an_unknown_fault_of_the_record_is_a_fault_of_the_model() -> None:
    """A name that is no class of errors (a later version's) is never anything else's fault."""
    async with served(Script([])) as url:
        gateway = Gateway()
        model = gateway.client(ModelSpec(name="m", base_url=url), lambda kind, data: None,
                               past=(Answer(call="m00001", content="x", fault="StoreFault"),))
        with pytest.raises(ModelFault):
            await model.call(asked("a"))
        await gateway.close()


async def test_nothing_is_sent_that_was_not_committed_before() -> None:
    """The intent stands in the log when it is kept; where that fails, nothing leaves. The answer is kept, too."""
    events: Events = []
    kept: list[list[EventKind]] = []

    async def keep() -> None:
        kept.append([kind for kind, _ in events])

    async def full() -> None:
        raise StoreFault("disk full")

    script = Script([said("an answer")])
    async with served(script) as url:
        gateway, spec = Gateway(patience=Patience(tries=1)), ModelSpec(name="m", base_url=url)
        with pytest.raises(StoreFault):
            await gateway.client(spec, lambda kind, data: None, kept=full).call(asked("a"))
        assert script.requests == []
        model = gateway.client(spec, lambda kind, data: events.append((kind, dict(data))), kept=keep)
        await model.call(asked("a"))
        await gateway.close()
    assert kept == [[EventKind.MODEL_CALL], [EventKind.MODEL_CALL, EventKind.MODEL_RESULT]]
