"""What a black-box agent did, read from its conversation: calls, results, words; and its limits at the gate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.errors import UsageError
from woodshed.harness.external import External, ExternalAgent
from woodshed.harness.external.observe import Reader, Seen
from woodshed.harness.external.spec import filled
from woodshed.interfaces import ModelResponse
from woodshed.model import EventKind, Message, ToolCall

CALL, RESULT, MESSAGE = EventKind.TOOL_CALL, EventKind.TOOL_RESULT, EventKind.MESSAGE


def called(*ids: str) -> ModelResponse:
    return ModelResponse("", tuple(ToolCall(id=one, name="bash", arguments={"command": one}) for one in ids))


def told(ident: str, content: str) -> Message:
    return Message(role="tool", call=ident, content=content)


def test_a_result_belongs_to_its_call() -> None:
    """Calls begin when the model asks for them, and end when a later request brings their results."""
    reader = Reader(result_code=r"exit (\d+)")
    seen, facts = reader.asked(Seen(), [Message(role="system", content="s"), Message(role="user", content="u")])
    assert [(kind, data["content"]) for kind, data in facts] == [(MESSAGE, "s"), (MESSAGE, "u")]
    seen, facts = reader.answered(seen, called("a", "b"))
    assert [(kind, data["call"]) for kind, data in facts] == [(CALL, "t0001c001"), (CALL, "t0001c002")]
    history = [Message(role="system", content="s"), Message(role="user", content="u"), Message(role="assistant"),
               told("b", "exit 3"), told("a", "fine")]
    seen, facts = reader.asked(seen, history)
    assert [(kind, data["call"], data["exit_code"]) for kind, data in facts] == [
        (RESULT, "t0001c002", 3), (RESULT, "t0001c001", None)]
    assert seen.open == ()
    assert reader.asked(seen, history)[1] == []


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.booleans())
def test_ids_that_come_again_are_told_apart(turns: list[int], same: bool) -> None:
    """Whatever ids a server gives, each result is that of the call it answers, in every turn."""
    reader, seen = Reader(), Seen()
    history, results = [Message(role="user", content="go")], list[tuple[str, str]]()
    for number, calls in enumerate(turns, 1):
        seen, facts = reader.asked(seen, history)
        results += [(str(data["call"]), str(data["content"])) for kind, data in facts if kind is RESULT]
        ids = [f"c{index}" if same else f"{number}.{index}" for index in range(calls)]
        seen, _ = reader.answered(seen, called(*ids))
        history += [Message(role="assistant"), *(told(ident, f"{number}/{n}") for n, ident in enumerate(ids, 1))]
    seen, facts = reader.asked(seen, history)
    results += [(str(data["call"]), str(data["content"])) for kind, data in facts if kind is RESULT]
    assert results == [(f"t{turn:04d}c{call:03d}", f"{turn}/{call}")
                       for turn, calls in enumerate(turns, 1) for call in range(1, calls + 1)]


def test_commands_in_text_are_calls_too() -> None:
    """Where an agent has its commands written in text, the user's next message is the result."""
    reader = Reader(action=r"```sh\n(.*?)\n```", result_code=r"code=(\d+)")
    start = [Message(role="user", content="go")]
    seen, _ = reader.asked(Seen(), start)
    seen, [(kind, data)] = reader.answered(seen, ModelResponse("so:\n```sh\nls\n```"))
    assert (kind, data["name"], data["arguments"]) == (CALL, "bash", {"command": "ls"})
    _, [(kind, data)] = reader.asked(seen, [*start, Message(role="assistant"), Message(role="user", content="code=2")])
    assert (kind, data["exit_code"]) == (RESULT, 2)


def test_a_rewritten_history_invents_nothing() -> None:
    """Results of calls that no model asked for are none; dropped results leave their calls open."""
    reader = Reader()
    seen, _ = reader.answered(Seen(), called("a"))
    after, facts = reader.asked(seen, [Message(role="user", content="summary"), told("x", "made up")])
    assert [kind for kind, _ in facts] == [MESSAGE]
    assert [one.wire for one in after.open] == ["a"]


def test_places_are_filled_once() -> None:
    """What an instruction says is not looked at again, and other braces stay."""
    values = {"instruction": "use {key} and {home}", "key": "K", "home": "H"}
    assert filled("{instruction}|{key}|{other}|{\"a\": 1}", values) == 'use {key} and {home}|K|{other}|{"a": 1}'


@pytest.mark.parametrize(("data", "field"), [
    ({"name": "a", "command": ["x", "{key}"]}, "command"), ({"name": "A b", "command": ["x"]}, "name"),
    ({"name": "a", "command": []}, "command"), ({"name": "a", "command": ["x"], "litter": ["../x"]}, "litter"),
    ({"name": "a", "command": ["x"], "action": "no group"}, "action"),
    ({"name": "a", "command": ["x"], "result_code": "("}, "result_code"),
    ({"name": "a", "command": ["x"], "comand": []}, "comand"),
])
def test_a_bad_declaration_names_its_field(data: dict[str, object], field: str) -> None:
    """A key in a command line, a bad name, a path outside, a pattern without its group: refused by name."""
    with pytest.raises(UsageError) as error:
        ExternalAgent.parse(data)
    assert str(error.value.field).startswith(field)


@pytest.mark.parametrize("argument", [None, "mini-swe-agnet", "missing.toml", "command:", "command:'x"])
def test_an_unknown_agent_is_a_usage_error(argument: str | None) -> None:
    """What names no agent says how to name one."""
    with pytest.raises(UsageError) as error:
        External(argument)
    assert error.value.remedy
