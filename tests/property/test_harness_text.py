"""Properties of everything that reads what a model wrote: it never raises, and what went in comes out."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.harness.clip import clip, decoded
from woodshed.harness.dialects import named
from woodshed.harness.dialects.fence import fences
from woodshed.harness.schema import complaint, unknown_tool
from woodshed.harness.tools import DEFAULT_TOOLS
from woodshed.interfaces import ModelResponse
from woodshed.model import read_object, written_call

SPECS = [maker.spec for maker in DEFAULT_TOOLS]  # type: ignore[attr-defined]  # our own makers are classes with a spec
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8)
SNIPPETS = st.lists(st.sampled_from([
    "```", "````", "~~~", "```bash\n", "```json\n", "\n```\n", "{\"name\": ", "\"bash\"", "\"arguments\": {", "}}",
    "DONE", "<think>", "</think>", "<tool_call>", "</tool_call>", "\n", "$ ", "ls", "\ud800", "\0", "finish", "é"])
    | st.text(max_size=8), max_size=20).map("".join)


@settings(deadline=None)
@given(st.one_of(SNIPPETS, st.text(alphabet=st.characters(), max_size=200)), st.sampled_from(["stop", "length", "x"]))
def test_no_answer_breaks_a_dialect(text: str, finish: str) -> None:
    """Whatever a model writes is read as calls, an end, or a complaint; never an exception, and never two of them."""
    for name in ("auto", "text", "tools"):
        reading = named(name).read(ModelResponse(text, finish_reason=finish))
        assert bool(reading.calls) + reading.done <= 1
        assert reading.calls or reading.done or reading.complaint
        for call in reading.calls:
            json.dumps(call.model_dump(mode="json"), allow_nan=False)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["DONE", "\n", " ", "*", "_", "a", "é", "."]), max_size=8).map("".join))
def test_done_is_the_last_word_on_its_own_line(text: str) -> None:
    """The end is declared by DONE after nothing, or nothing but signs, since the last line end or the start."""
    said = named("text").read(ModelResponse(text)).done
    assert said is bool(re.search(r"(?:^|\n)\W*DONE\W*\Z", text.strip()))


def test_an_answer_of_blanks_is_read_in_one_pass() -> None:
    """A million blanks or line ends, which broken models write, take a moment; in the square of them it were hours."""
    for blank in ("\n", " ", "\t\n"):
        for text in ("a{}b", "<tool_call>a{}b", "<tool_call>{}", "a\n{}DONE{}b", "```bash\n{}\n```", "$ {}b"):
            assert named("text").read(ModelResponse(text.replace("{}", blank * 1_000_000)))


@settings(deadline=None)
@given(st.lists(st.text(alphabet=st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"])), min_size=1, max_size=5))
def test_a_fence_gives_back_what_was_put_in(lines: list[str]) -> None:
    """A command without fences of its own is read line for line."""
    content = "\n".join(line.replace("`", "'") for line in lines)
    [fence] = list(fences(f"Text.\n```bash\n{content}\n```\nMore."))
    assert (fence.language, fence.content, fence.closed) == ("bash", content, True)


@settings(deadline=None)
@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_arguments_survive_writing_and_reading(arguments: dict[str, Any]) -> None:
    """Arguments written as JSON come back equal, whether a server or a fence carries them."""
    text = json.dumps(arguments)
    assert written_call("1", "bash", text).arguments == arguments
    fenced = named("text").read(ModelResponse(f"```json\n{json.dumps({'name': 'x', 'arguments': arguments})}\n```"))
    assert fenced.calls[0].arguments == arguments


@settings(deadline=None)
@given(st.text(alphabet=st.characters(), max_size=80))
def test_reading_an_object_never_raises(text: str) -> None:
    """Any text is an object or comes with a reason that can be stored and sent."""
    value, error = read_object(text)
    assert (value is None) == (error is not None)
    (error or "").encode()


@settings(deadline=None)
@given(st.sampled_from(SPECS), st.dictionaries(
    st.sampled_from(["command", "path", "old", "new", "content", "start", "lines", "pattern", "x"]) | st.text(), JSON))
def test_checked_arguments_are_what_the_schema_says(spec: Any, arguments: dict[str, Any]) -> None:
    """Arguments without a complaint have every required key, no unknown one, and the declared types."""
    problem = complaint(spec, arguments)
    properties = spec.parameters["properties"]
    kinds = {"string": str, "integer": int}
    fits = (set(spec.parameters.get("required", ())) <= set(arguments) <= set(properties)
            and all(type(value) is kinds[properties[key]["type"]] for key, value in arguments.items()))
    nul = any(isinstance(value, str) and "\0" in value for value in arguments.values())
    assert (problem is None) == fits or nul


@settings(deadline=None)
@given(st.text(alphabet=st.characters(), max_size=300))
def test_unknown_tools_are_answered(name: str) -> None:
    """Any name gets an answer that lists the tools."""
    assert "bash" in unknown_tool(name, [spec.name for spec in SPECS])


@settings(deadline=None)
@given(st.binary(max_size=4000), st.integers(min_value=10, max_value=1000))
def test_clipped_text_is_bounded_and_keeps_both_ends(content: bytes, limit: int) -> None:
    """Any bytes become text of about the limit, with head, tail and the size of the gap."""
    text = decoded(content)
    short, clipped = clip(text, limit)
    assert clipped == (len(text) > limit)
    assert len(short) <= limit + 60
    assert short[: limit // 2] == text[: limit // 2]
    assert short.endswith(text[len(text) - limit // 3:] if clipped else text)
    assert "\0" not in short
    short.encode()
