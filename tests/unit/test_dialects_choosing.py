"""Which format is spoken with which model, and what happens where the server takes no tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripted import Given, act, said
from woodshed.errors import UsageError
from woodshed.harness.dialects import NAMES, named
from woodshed.harness.dialects.choosing import BY_MODEL, family_of
from woodshed.harness.dialects.families import FAMILIES
from woodshed.harness.dialects.typed import Types
from woodshed.harness.loop import Loop
from woodshed.interfaces import ModelResponse, ToolSpec
from woodshed.model import EventKind, ToolCall

REFUSAL: Given = (400, '{"error": {"message": "tools are not supported by this model"}}')


@pytest.mark.parametrize(("model", "dialect"), [
    ("Qwen/Qwen2.5-Coder-7B-Instruct", "hermes"), ("qwen3:8b", "hermes"),
    ("Qwen3-Coder-30B-A3B-Instruct", "qwen-coder"),
    ("Qwen/Qwen3.5-35B-A3B", "qwen-coder"), ("NousResearch/Hermes-3-Llama-3.1-8B", "hermes"),
    ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"), ("DeepSeek-R1", "deepseek-v3"),
    ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3.1"), ("DeepSeek-V3.2-Exp", "deepseek-v3.2"),
    ("deepseek_v4_flash", "deepseek-v4"), ("meta-llama/Llama-3.1-8B-Instruct", "llama-json"),
    ("Meta-Llama-3-70B", "llama-json"), ("Llama-3.2-3B-Instruct", "llama-json"),
    ("Llama-4-Scout", "llama-pythonic"),
    ("mistralai/Mistral-7B-Instruct-v0.3", "mistral"), ("mistralai/Devstral-Small-2507", "mistral-v11"),
    ("Mistral-Small-3.2-24B", "mistral-v11"), ("zai-org/GLM-4.5-Air", "glm"), ("GLM-5", "glm"),
    ("moonshotai/Kimi-K2-Instruct", "kimi"), ("openai/gpt-oss-20b", "gpt-oss"),
    ("google/functiongemma-270m-it", "functiongemma"), ("google/gemma-4-12b-it", "gemma"),
    ("MiniMaxAI/MiniMax-M2", "minimax"), ("LiquidAI/LFM2-1.2B", "lfm2"),
    ("DeepSeek-R1-Distill-Qwen-7B", None), ("SmolLM2-135M-Instruct", None), ("", None),
])
def test_a_models_name_tells_its_family(model: str, dialect: str | None) -> None:
    """As servers and hubs spell it, whatever the case; a model of no known family has none."""
    family = family_of(model)
    assert (family.name if family else None) == dialect


def test_the_table_names_dialects_that_exist_and_every_family() -> None:
    """No row leads nowhere, and no format can be reached by asking alone."""
    assert {dialect for _, dialect in BY_MODEL if dialect} == set(FAMILIES)
    assert list(NAMES) == ["auto", "tools", "strict", "text", *FAMILIES, *(f"text:{name}" for name in FAMILIES)]
    assert [named(name, raw=name.startswith("text:")).name for name in NAMES] == list(NAMES)


def test_a_setting_comes_before_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns of the setting ``dialects`` are asked first; what they name must exist."""
    monkeypatch.setenv("WOODSHED_DIALECTS", "my_tune*=glm, qwen*=text")
    assert family_of("My-Tune-7b") is FAMILIES["glm"]
    assert family_of("qwen3") is None
    assert family_of("kimi-k2") is FAMILIES["kimi"]
    monkeypatch.setenv("WOODSHED_DIALECTS", "x=klingon")
    with pytest.raises(UsageError, match="'x=klingon' names no dialect"):
        family_of("x")


async def test_a_server_without_tools_is_spoken_to_in_the_familys_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With auto, a server that refuses tools is asked again in the format of the model's family, with its manual."""
    monkeypatch.setenv("WOODSHED_DIALECTS", "scripted=kimi")
    family = FAMILIES["kimi"]
    calls = [family.write("", [ToolCall(id="", name=name, arguments=arguments)], Types(())) for name, arguments in (
        ("bash", {"command": "true"}), ("finish", {"summary": "I could not do it."}))]
    done = await act(Loop(), tmp_path, REFUSAL, *map(said, calls))
    assert [data["name"] for data in done.of(EventKind.TOOL_CALL)] == ["bash", "finish"]
    assert any("going on in kimi" in data["text"] for data in done.of(EventKind.NOTE))
    assert "tools" in done.requests[0]
    assert "tools" not in done.requests[1]
    assert "<|tool_call_begin|>functions.NAME:0" in done.requests[1]["messages"][0]["content"]


def test_what_the_server_parsed_comes_before_what_stands_in_the_text() -> None:
    """Native calls are the calls, even where the text has marks, too."""
    call = ToolCall(id="1", name="bash", arguments={"command": "a"})
    reading = named("auto").read(ModelResponse('<tool_call>{"name": "bash", "arguments": {"command": "b"}}</tool_call>',
                                               tool_calls=(call,)))
    assert (reading.calls, reading.native) == ((call,), True)


def test_a_fenced_command_that_holds_marks_is_a_command() -> None:
    """Marks inside a block that begins before them are a part of it."""
    command = "cat > doc.md <<'X'\n<tool_call>\n{\"name\": \"bash\", \"arguments\": {}}\n</tool_call>\nX"
    reading = named("auto").read(ModelResponse(f"Writing.\n```bash\n{command}\n```"))
    assert [call.arguments for call in reading.calls] == [{"command": command}]


@pytest.mark.parametrize("text", ["I documented the <tool_call> tags.", "Now `<function=foo>` is escaped.",
                                  'It prints <invoke name="x"> first.', "The <|start|> token is kept."])
def test_marks_that_are_spoken_of_are_no_calls(text: str) -> None:
    """In auto, a mark in prose neither calls a tool nor keeps the words from being the end."""
    reading = named("auto").read(ModelResponse(text), [ToolSpec("bash", "Runs.", {"type": "object"})])
    assert (reading.calls, reading.attempted) == ((), False)


async def test_a_call_that_cannot_be_read_is_no_end(tmp_path: Path) -> None:
    """Words after work that succeeded are the end; a call without a readable name is answered instead."""
    call = FAMILIES["hermes"].write("", [ToolCall(id="", name="bash", arguments={"command": "true"})], Types(()))
    done = await act(Loop(), tmp_path, said(call), said("<tool_call>\n{}\n</tool_call>"), said("All is done."),
                     dialect="hermes")
    assert len(done.requests) == 3
    assert "Nothing was run" in done.requests[2]["messages"][-1]["content"]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_calls_that_were_only_thought_are_none(name: str) -> None:
    """What stands between <think> and </think> is not done."""
    call = FAMILIES[name].write("", [ToolCall(id="", name="bash", arguments={"command": "rm -rf ."})], Types(()))
    for text in (f"<think>{call}</think>I had better not.", f"<think>\n{call}"):
        assert not named(name).read(ModelResponse(text)).calls
        assert not named("auto", name).read(ModelResponse(text)).calls
