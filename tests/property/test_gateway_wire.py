"""Properties of the wire: any answer is read or garbled, any request can be sent, any wait is within its bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.errors import ModelGarbled, ModelRateLimited, ModelRefused, ModelUnreachable
from woodshed.gateway.call import Patience
from woodshed.gateway.failure import failure, retry_after_s
from woodshed.gateway.wire import answer, body
from woodshed.interfaces import ModelRequest
from woodshed.model import Message, ModelSpec, ToolCall

SPEC = ModelSpec(name="m", base_url="http://127.0.0.1:1/v1")
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
        st.sampled_from(["id", "function", "name", "arguments", "text", "content", "x"]), inner, max_size=3),
    max_leaves=6)
ANSWERS = st.fixed_dictionaries({}, optional={
    "choices": ANY | st.lists(st.fixed_dictionaries({}, optional={
        "message": ANY | st.fixed_dictionaries({}, optional={"content": ANY, "tool_calls": ANY | st.lists(
            st.fixed_dictionaries({"function": st.fixed_dictionaries({}, optional={"name": ANY, "arguments": ANY})},
                                  optional={"id": ANY}), max_size=2)}),
        "finish_reason": ANY}), min_size=1, max_size=2),
    "usage": ANY | st.fixed_dictionaries({}, optional={"prompt_tokens": ANY, "completion_tokens": ANY})})
TEXT = st.text(alphabet=st.characters(), max_size=20)  # lone surrogates too


@settings(deadline=None)
@given(ANSWERS | ANY | st.binary(max_size=50))
def test_any_answer_is_read_or_garbled(sent: Any) -> None:
    """Whatever a server answers becomes a response whose calls can be stored, or ModelGarbled; nothing else."""
    payload = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    try:
        response = answer(payload, 0.1)
    except ModelGarbled as garbled:
        str(garbled).encode()
        return
    response.content.encode()
    assert response.prompt_tokens >= 0
    for call in response.tool_calls:
        json.dumps(call.model_dump(mode="json"), allow_nan=False).encode()


@settings(deadline=None)
@given(st.lists(st.builds(Message, role=st.sampled_from(["user", "assistant", "tool"]), content=TEXT), max_size=3),
       TEXT)
def test_any_request_can_be_sent(messages: list[Message], raw: str) -> None:
    """A conversation with any text in it becomes valid UTF-8 JSON, and arguments stay an object."""
    call = ToolCall(id="1", name="bash", raw=raw, error="no JSON")
    history = [*messages, Message(role="assistant", tool_calls=(call,))]
    sent = body(ModelRequest(messages=history), SPEC, -5)
    read = json.loads(json.dumps(sent, ensure_ascii=False, allow_nan=False).encode())
    assert json.loads(read["messages"][-1]["tool_calls"][0]["function"]["arguments"]) == {}
    assert 0 <= read["seed"] < 2**31


@settings(deadline=None)
@given(st.integers(1, 12), st.floats(0, 1), st.none() | st.floats(0, 1e6))
def test_waits_are_bounded_and_never_undercut(failed: int, chance: float, asked: float | None) -> None:
    """A wait is positive, at most patience's own bound above what was asked, and never below what was asked."""
    patience = Patience(chance=lambda: chance)
    wait = patience.wait_s(failed, ModelRateLimited("slow down", asked))
    if failed >= patience.tries or (asked or 0) > patience.longest_s:
        assert wait is None
    else:
        assert wait is not None
        assert max(asked or 0, 0.25) <= wait <= 1.1 * patience.longest_s
    assert patience.wait_s(failed, ModelRefused("no")) is None


@settings(deadline=None)
@given(st.integers(300, 599), st.binary(max_size=60), st.text(max_size=30))
def test_any_status_has_one_owner(status: int, payload: bytes, header: str) -> None:
    """Every failing status becomes a ModelFault; only server trouble is worth another try."""
    fault = failure(status, lambda name: header, payload, SPEC, 0.0)
    assert fault.retryable == isinstance(fault, ModelUnreachable | ModelRateLimited)
    assert fault.retryable == (status >= 500 or status in (408, 425, 429))


@pytest.mark.parametrize(("value", "seconds"), [
    (None, None), ("", None), ("soon", None), ("-1", None), ("5", 5.0), (" 5.5 ", 5.5),
    ("Thu, 01 Jan 1970 00:01:00 GMT", 60.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("Thu, 99 Jan", None)])
def test_retry_after_values(value: str | None, seconds: float | None) -> None:
    """Seconds, decimal seconds and dates are understood; a date in the past means now; nonsense means nothing."""
    assert retry_after_s(value, 0.0) == seconds
