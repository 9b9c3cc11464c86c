"""Laws of the families' formats: what is written is read, wherever it is cut, and nothing that comes breaks them."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.harness.dialects import NAMES, named
from woodshed.harness.dialects.families import FAMILIES
from woodshed.harness.dialects.hearing import Heard, Hearing, hear
from woodshed.harness.dialects.shield import Shield
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ModelResponse, ToolSpec
from woodshed.model import ToolCall

NAMES_OF_FAMILIES = sorted(FAMILIES)
MARKS = sorted({mark for family in FAMILIES.values() for mark in family.openers} | {
    "</tool_call>", "</function>", "</parameter>", "<parameter=", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>",
    "</invoke>", '<parameter name="', "</minimax:tool_call>", "<｜DSML｜parameter name=\"", "</｜DSML｜parameter>",
    "</｜DSML｜invoke>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "\n```", "```json", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<escape>", '<|"|>', "<end_function_call>", "<tool_call|>", "call:", "<|call|>", "<|end|>",
    "<|constrain|>", "[ARGS]", "[CALL_ID]", "<think>", "</think>", "&lt;", "&amp;", "&amp;lt;",
    "&lt;/parameter>", "&amp;lt;arg_key>", "{", "}", "[", "]", "(", ")", "'", '"', "\\", "\\\"", "'''", '"""', "\n",
    "\r\n", ",", ":", "=", "**", "True", "null", "1", "-2.5e3", "é", "\u2028", "😀", " ", "\t", "\0", "\x7f"})
TEXT = st.lists(st.sampled_from(MARKS) | st.text(max_size=6), max_size=8).map("".join)
NUMBERS = st.integers(-2**63, 2**63) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(st.none() | st.booleans() | NUMBERS | TEXT, lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6)
KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": ({"type": "string"}, TEXT), "count": ({"type": "integer"}, st.integers()),
    "share": ({"type": "number"}, NUMBERS), "flag": ({"type": "boolean"}, st.booleans()),
    "list": ({"type": "array"}, st.lists(JSON, max_size=3)),
    "object": ({"type": "object"}, st.dictionaries(TEXT, JSON, max_size=3)),
    "either": ({"type": ["string", "null"]}, TEXT | st.none()),
    "any": ({"description": "of any type"}, JSON),
    "some": ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, TEXT | st.integers()),
    "from": ({"type": "string"}, TEXT), "odd key <a=\"b\">\n&lt;": ({"type": "string"}, TEXT),
}
TOOLS = [ToolSpec(name, "Does it.", {"type": "object", "properties": {key: kind for key, (kind, _) in KINDS.items()}})
         for name in ("bash", "get-weather", "read_file", "weather.get")]
TYPES = Types(TOOLS)
ARGUMENTS = st.fixed_dictionaries({}, optional={key: value for key, (_, value) in KINDS.items()})
CALLS = st.lists(st.builds(lambda name, arguments: ToolCall(id="", name=name, arguments=arguments),
                           st.sampled_from([tool.name for tool in TOOLS]), ARGUMENTS), min_size=1, max_size=3)
SAID = st.sampled_from(["", "I will look.", "Zwei Zeilen,\nund mehr: 3 < 4 & 5 > 2."])
HOSTILE = st.lists(st.sampled_from([*MARKS, "function", "bash", "functions.bash:0", '"name"', '"arguments"', "{}",
                                    '{"name": "bash", "arguments": {"command": "ls"}}', "bash(", "command=", "\ud800"])
                   | st.text(alphabet=st.characters(), max_size=5), max_size=25).map("".join)


def pairs(calls: Sequence[ToolCall | str]) -> list[Any]:
    """Names and arguments, so that 1 and True, or 1 and 1.0, differ."""
    return [call if isinstance(call, str) else (call.name, repr(call.arguments), call.error) for call in calls]


@settings(deadline=None, max_examples=120)
@given(name=st.sampled_from(NAMES_OF_FAMILIES), said=SAID, calls=CALLS)
def test_calls_that_are_written_are_read(name: str, said: str, calls: list[ToolCall]) -> None:
    """Any calls, with any text in their arguments, come back the same, and so do the words before them."""
    come_back(name, said, calls)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES_OF_FAMILIES)
@settings(deadline=None, max_examples=400)
@given(said=SAID, calls=CALLS)
def test_calls_of_every_family_come_back(name: str, said: str, calls: list[ToolCall]) -> None:
    """The same, with each family tried often."""
    come_back(name, said, calls)


def come_back(name: str, said: str, calls: list[ToolCall]) -> None:
    family = FAMILIES[name]
    text = family.write(said, calls, TYPES)
    heard = hear(text, family, TYPES)
    assert pairs(heard.found) == pairs(calls), text
    assert heard.said.strip() == said


CUT = {"text": st.one_of(HOSTILE, st.tuples(SAID, CALLS)), "cuts": st.lists(st.integers(0, 400), max_size=12)}


@settings(deadline=None, max_examples=120)
@given(name=st.sampled_from(NAMES_OF_FAMILIES), **CUT)
def test_it_does_not_matter_where_an_answer_is_cut(name: str, text: Any, cuts: list[int]) -> None:
    """Fed in pieces of any size, an answer is heard as in one piece, and no word is told that turns out to be none."""
    cut_anywhere(name, text, cuts)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES_OF_FAMILIES)
@settings(deadline=None, max_examples=400)
@given(**CUT)
def test_answers_of_every_family_are_cut_anywhere(name: str, text: Any, cuts: list[int]) -> None:
    """The same, with each family tried often."""
    cut_anywhere(name, text, cuts)


def cut_anywhere(name: str, text: Any, cuts: list[int]) -> None:
    family = FAMILIES[name]
    whole = text if isinstance(text, str) else family.write(text[0], text[1], TYPES)
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    hearing, told = Hearing(family, TYPES), ""
    for start, end in pairwise(places):
        told += hearing.feed(whole[start:end])
    heard = hearing.close()
    assert same(heard, hear(whole, family, TYPES))
    assert heard.said.startswith(told)


def same(one: Heard, other: Heard) -> bool:
    return one.said == other.said and pairs(one.found) == pairs(other.found)


def test_words_are_told_as_soon_as_they_are_certain() -> None:
    """What cannot be a part of a mark any more is not held back."""
    hearing = Hearing(FAMILIES["hermes"], TYPES)
    told = [hearing.feed(piece) for piece in ("Look", " <", "b>", "<tool", "_call>{")]
    assert told == ["Look", " ", "<b>", "", ""]


@settings(deadline=None, max_examples=150)
@given(text=HOSTILE, finish=st.sampled_from(["stop", "length"]), name=st.sampled_from(NAMES))
def test_no_text_breaks_a_reader(text: str, finish: str, name: str) -> None:
    """Whatever a model writes is calls, an end, or a complaint, in words that can be stored; never an error."""
    for model in ("", "Llama-3.1-8B", "Llama-3.2-3B"):
        dialect = named(name, model, raw=name.startswith("text:"))
        reading = dialect.read(ModelResponse(text, finish_reason=finish), TOOLS)
        assert bool(reading.calls) + reading.done <= 1
        assert reading.calls or reading.done or reading.complaint
        for call in reading.calls:
            json.dumps(call.model_dump(mode="json"), ensure_ascii=False, allow_nan=False).encode()
        if name != "tools":
            reading.note.encode()
            reading.complaint.encode()


@settings(deadline=None)
@given(text=TEXT)
def test_a_shield_hides_every_mark_and_comes_off_whole(text: str) -> None:
    """Behind a shield there is no mark, and taken off it leaves what it was put on."""
    shield = Shield(r"/?(?:parameter|arg_key|arg_value)[>=]")
    assert not any(mark in shield.on(text) for mark in ("<parameter=", "</parameter>", "<arg_key>", "</arg_value>"))
    assert shield.off(shield.on(text)) == text
    assert shield.on(text) == text or "<" in text or "&" in text


ADVERSARIES = ("{x}", "{o}" * 2 + "{x}", "{o}{{", "{x}{o}", "<think></think>", "<think>", "&amp;", "&lt;", "{o}bash(a=",
               "[[", "\\", "\n", "{o}{{\"name\": \"bash\", \"arguments\": {{\"a\": \"", "</parameter>",
               "<function=a><parameter=b>",
               "<tool_call>a<arg_key>b</arg_key><arg_value>c</arg_value>", "</arg_value>x", "a:1,", "<|message|>",
               "<|start|>assistant to=functions.a<|message|>{{}}<|call|>", '<invoke name="a">', "</｜DSML｜parameter>",
               '<｜DSML｜parameter name="a">b</｜DSML｜parameter>', "a\"b'", "<", "[TOOL_CALLS]a{{", "\n[", "\n[a(")


SAME_READER = ("deepseek-v3", "deepseek-v4", "functiongemma", "lfm2", "mistral")
"""Families that share theirs with another one."""


def seconds(work: Callable[[], object]) -> float:
    """CPU time of the faster of two tries: what others do on the machine is no part of it."""
    found = []
    gc.disable()  # it looks at all objects of the process again and again, where many are made
    try:
        for _ in range(2):
            started = time.process_time()
            work()
            found.append(time.process_time() - started)
    finally:
        gc.enable()
    return min(found)


def grows_linearly(read: Callable[[str], object], unit: str, opened: str, size: int) -> bool:
    """Whether four times the text takes about four times as long; in the square of it, it were sixteen times."""
    small, large = (opened + unit * (length // len(unit)) for length in (size, 4 * size))
    few = seconds(lambda: read(small))
    return seconds(lambda: read(large)) <= max(9 * few, 0.02)


@pytest.mark.parametrize("name", ["auto", "qwen-coder", "gemma", "gpt-oss"])
def test_reading_is_linear(name: str) -> None:
    """Four times as much of what could make a reader look again and again takes no nine times as long."""
    adversaries(name, 4_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["auto", *(name for name in NAMES_OF_FAMILIES if name not in SAME_READER)])
def test_a_megabyte_is_read_in_linear_time(name: str) -> None:
    """The same with a million characters, for every reader of its own."""
    adversaries(name, 250_000)


def adversaries(name: str, size: int) -> None:
    family = FAMILIES.get(name, FAMILIES["hermes"])
    [written] = [family.write("", [ToolCall(id="", name="bash", arguments={"text": "TEXT", "any": 1})], TYPES)]
    head = written.partition("TEXT")[0]

    def read(text: str) -> object:
        return named(name).read(ModelResponse(text), TOOLS)

    for pattern in ADVERSARIES:
        unit = pattern.format(o=family.openers[0], x=written)
        for opened in ("", head):
            assert grows_linearly(read, unit, opened, size), (name, opened, unit)
