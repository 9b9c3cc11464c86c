"""The families' chat formats: the text that their own templates and libraries make, with nobody else's marks in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from woodshed.errors import UsageError
from woodshed.harness.dialects import NAMES, RAW, named
from woodshed.harness.dialects.chats import CHATS
from woodshed.harness.dialects.families import FAMILIES
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ModelResponse, ToolSpec
from woodshed.model import Message, ToolCall

TOOL = ToolSpec("bash", "Runs.", {"type": "object", "properties": {
    "command": {"type": "string", "description": "c"}}, "required": ["command"]})
RENDERED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "chats.json").read_text("utf-8"))
"""Texts that a family's own template, encoder or library made of a conversation; ``source`` says which, and how."""
CALL = ToolCall(id="t0001c001", name="bash", arguments={"command": "ls"})
MOVES = {"mistral"}
"""Its template moves tools and system prompt to the last user's turn: what was sent before it is no prefix then."""


def conversation(pairs: list[list[str]]) -> list[Message]:
    return [Message(role=role, content=content) for role, content in pairs]


@pytest.mark.parametrize("number", range(len(RENDERED)))
def test_the_text_is_what_the_families_own_templates_make(number: int) -> None:
    """Prompt, tools, calls, results and what a next answer begins with are the same, letter by letter."""
    kept = RENDERED[number]
    assert CHATS[kept["family"]].prompt(conversation(kept["messages"]), [TOOL]) == kept["text"], kept["source"]


def test_every_family_has_a_chat_format_and_a_rendered_sample() -> None:
    """No format is only as we remember it."""
    assert set(CHATS) == set(FAMILIES) == {kept["family"] for kept in RENDERED}
    assert all(kept["source"] for kept in RENDERED)


@pytest.mark.parametrize("family", sorted(CHATS))
def test_each_prompt_begins_with_the_one_before_and_its_answer(family: str) -> None:
    """So a rollout of many turns is one sequence of tokens, of which every answer was sampled as it stands."""
    chat = CHATS[family]
    talk = [Message(role="system", content="SYS"), Message(role="user", content="USER")]
    for turn in range(3):
        before = chat.prompt(talk, [TOOL])
        answer = chat.opened + FAMILIES[family].write(f"Turn {turn}.", [CALL], Types([TOOL]))
        assert before.endswith(chat.opened)
        talk += [Message(role="assistant", content=answer), Message(role="tool", content=f"R{turn}", call=CALL.id)]
        assert chat.prompt(talk, [TOOL]).startswith(before.removesuffix(chat.opened) + answer)
    if family not in MOVES:
        before = chat.prompt(talk, [TOOL])
        talk += [Message(role="assistant", content="Done."), Message(role="user", content="More.")]
        assert chat.prompt(talk, [TOOL]).startswith(before.removesuffix(chat.opened) + "Done.")


@pytest.mark.parametrize("family", sorted(CHATS))
def test_nobody_but_the_format_writes_its_marks(family: str) -> None:
    """A tool's output or a task's text that holds turns, calls or ends of its own adds none; with no care, it would."""
    chat = CHATS[family]
    hostile = "".join(chat.marks) + chat.answer[0] + chat.user[0] + "".join(chat.stops)
    calm = [Message(role="system", content="S"), Message(role="user", content="U"),
            Message(role="assistant", content=FAMILIES[family].write("", [CALL], Types([TOOL]))),
            Message(role="tool", content="R", call=CALL.id)]
    attacked = [one if one.role == "assistant" else one.model_copy(update={"content": hostile}) for one in calm]

    def marks(messages: list[Message]) -> int:
        text = chat.prompt(messages, [TOOL])
        return sum(text.count(mark) for mark in chat.marks)

    assert marks(attacked) == marks(calm)
    careless = type(chat)(**{**{name: getattr(chat, name) for name in chat.__dataclass_fields__}, "marks": ("\0",)})
    assert sum(careless.prompt(attacked, [TOOL]).count(mark) for mark in chat.marks) > marks(calm)


@pytest.mark.parametrize("family", sorted(CHATS))
def test_an_answer_in_the_format_is_read_as_its_calls(family: str) -> None:
    """What the model wrote, with what was begun for it, is the calls that the family's reader finds."""
    dialect = named(family, raw=True)
    assert dialect.chat is CHATS[family]
    assert list(dialect.offers([TOOL])) == [TOOL]
    assert "finish" in dialect.manual([TOOL])
    content = FAMILIES[family].write("I look.", [CALL], Types([TOOL]))
    reading = dialect.read(ModelResponse(content), [TOOL])
    assert [(call.name, call.arguments) for call in reading.calls] == [("bash", {"command": "ls"})]
    thought = {"<think>": "<think>Hm.</think>", "<think>\n": "<think>\nHm.\n</think>\n"}.get(CHATS[family].opened, "")
    assert dialect.read(ModelResponse(thought + content), [TOOL]).calls == reading.calls


def test_for_raw_completions_the_format_is_said_and_never_guessed() -> None:
    """Names of families are dialects there, and text in a family's format; all others are refused with a remedy."""
    assert [named(name, raw=True).name for name in RAW] == list(RAW)
    for name in sorted(set(NAMES) - set(RAW)):
        with pytest.raises(UsageError, match="does not say how"):
            named(name, "Qwen/Qwen2.5-7B-Instruct", raw=True)
    with pytest.raises(UsageError, match="raw completions"):
        named("text:hermes")


def test_ids_and_headers_of_the_model_are_answered_with_the_same() -> None:
    """Kimi's and Mistral's ids are those that the model gave; gpt-oss's turns end as they were meant."""
    kimi = "<|tool_call_begin|>functions.bash:7<|tool_call_argument_begin|>{}<|tool_call_end|>"
    asked = [Message(role="user", content="U"), Message(role="assistant", content=kimi),
             Message(role="tool", content="R")]
    assert "## Return of functions.bash:7\nR" in CHATS["kimi"].prompt(asked, [])
    later = [asked[0], Message(role="assistant", content="[TOOL_CALLS]bash[CALL_ID]abcdefghi[ARGS]{}"), asked[2]]
    assert "[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]R[/TOOL_RESULTS]" in CHATS["mistral-v11"].prompt(later, [])
    final = [asked[0], Message(role="assistant", content="<|channel|>final<|message|>Done."), asked[0]]
    assert "Done.<|end|><|start|>user" in CHATS["gpt-oss"].prompt(final, [])
