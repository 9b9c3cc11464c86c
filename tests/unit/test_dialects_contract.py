"""The families' own chat templates, as TRL ships them, against our reading and writing. In a Python of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from woodshed.harness.dialects.chats import CHATS
from woodshed.harness.dialects.families import FAMILIES
from woodshed.harness.dialects.hearing import hear
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ToolSpec
from woodshed.model import Message, ToolCall

pytestmark = pytest.mark.slow

RENDER = """
import json, sys
from importlib.metadata import files
from jinja2.sandbox import ImmutableSandboxedEnvironment

def dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

def fail(text):
    raise ValueError(text)

kept = {file.name: file.locate() for file in files("trl") if file.name.endswith(".jinja")}
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=["jinja2.ext.loopcontrols"])
environment.filters["tojson"] = dumps
environment.globals.update(raise_exception=fail, strftime_now=lambda form: "2026-01-01")
made = []
for template, tools, messages, *more in json.load(sys.stdin):
    text = environment.from_string(kept[template + ".jinja"].read_text())
    made.append(text.render(bos_token="", eos_token="", tools=tools, messages=messages,
                            add_generation_prompt=bool(more)))
json.dump(made, sys.stdout)
"""
TOOL = ToolSpec("bash", "Runs.", {"type": "object", "properties": {
    "command": {"type": "string", "description": "c"}, "count": {"type": "integer", "description": "n"},
    "object": {"type": "object", "description": "o", "properties": {}},
    "share": {"type": "number", "description": "s"}, "flag": {"type": "boolean", "description": "f"}},
    "required": ["command"]})
CASES: list[list[dict[str, Any]]] = [
    [{"command": "ls"}], [{}], [{"command": ""}], [{"command": "\n  two\n\nlines\n"}],
    [{"command": "echo 'é' \"q\" \\n \\\\ <b> && [x] {y} $z; 😀"}],
    [{"command": "x", "count": -3, "share": 2.5, "flag": False}],
    [{"command": "true", "count": 7}], [{"command": "[1, 2]"}], [{"command": "null"}],
    [{"object": {"a b": [1, None, True, {"c": "d, e"}], "f": "x: y"}}],
]
PARALLEL: list[list[dict[str, Any]]] = [[{"command": "a"}, {"command": "b", "count": 1}], [{}, {"flag": True}]]
TEMPLATES = {  # by template: its family; whether it writes several calls; whether we write exactly the same
    "qwen2_5": ("hermes", True, True), "qwen3": ("hermes", True, True), "qwen3_5_think": ("qwen-coder", True, False),
    "qwen3_8": ("qwen-coder", True, True), "glm4moe": ("glm", True, True), "gemma4_v5": ("gemma", True, False),
    "lfm2_v2": ("lfm2", True, False), "llama3_1": ("llama-json", False, True), "gptoss": ("gpt-oss", False, False),
}  # not the same: Qwen3.5 writes False, Gemma sorts, LFM2 quotes as Python does, gpt-oss names the recipient first


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with jinja2, and TRL's files beside it without what TRL itself needs (10 MB)."""
    folder = tmp_path_factory.mktemp("templates")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    for arguments in (["jinja2"], ["--no-deps", "trl>=1.16"]):
        done = subprocess.run([folder / "bin" / "pip", "install", "-q", *arguments], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"jinja2 and trl cannot be installed here; set an index that pip reaches: {done.stderr[-200:]}")
    return folder / "bin" / "python"


def conversation(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    made = [{"type": "function", "id": f"abcdefgh{number}", "function": {"name": "bash", "arguments": arguments}}
            for number, arguments in enumerate(calls)]
    results = [{"role": "tool", "name": "bash", "content": "RESULT", "tool_call_id": call["id"]} for call in made]
    return [{"role": "user", "content": "THE TASK"}, {"role": "assistant", "content": "", "tool_calls": made}, *results]


CHATS_BY_TEMPLATE = {
    "qwen2_5": "hermes", "qwen3": "hermes", "qwen3_5_nothink": "qwen-coder", "glm4moe": "glm", "gemma4_v5": "gemma",
    "lfm2_v2": "lfm2", "llama3_1": "llama-json", "deepseekv3": "deepseek-v3"}  # gpt-oss's tells the date of the day


def test_whole_conversations_are_as_the_families_templates_write_them(environment: Path) -> None:
    """All that stands before an answer, and all that follows it, is the same text as we send to raw completions."""
    tools = [{"type": "function", "function": {"name": TOOL.name, "description": TOOL.description,
                                               "parameters": TOOL.parameters}}]
    asked = []
    for template in CHATS_BY_TEMPLATE:
        talk = [{"role": "system", "content": "SYS"}, *conversation([{"command": "ls"}])]
        if template == "deepseekv3":
            talk[2]["tool_calls"][0]["function"]["arguments"] = '{"command": "ls"}'
        asked.append((template, tools, talk, True))
    done = subprocess.run([environment, "-c", RENDER], capture_output=True, text=True, check=True,
                          input=json.dumps(asked))
    for (template, *_), text in zip(asked, json.loads(done.stdout), strict=True):
        chat, family = CHATS[CHATS_BY_TEMPLATE[template]], FAMILIES[CHATS_BY_TEMPLATE[template]]
        said = family.write("", [ToolCall(id="", name="bash", arguments={"command": "ls"})], Types([TOOL]))
        begun = [Message(role="system", content="SYS"), Message(role="user", content="THE TASK")]
        before = chat.prompt(begun, [TOOL])
        whole = chat.prompt([*begun, Message(role="assistant", content=said), Message(role="tool", content="RESULT")],
                            [TOOL])
        assert text.startswith(before), template
        rest = re.sub(r"<think>\s*(?:</think>\s*)?\Z", "", text)  # whether it thinks next is the template's to say
        assert rest.endswith(whole.removeprefix(before + said)), template


def test_what_the_families_templates_write_is_read(environment: Path) -> None:
    """Calls in a family's own template are read as those calls; most are what we write ourselves, letter by letter."""
    tools = [{"type": "function", "function": {"name": TOOL.name, "description": TOOL.description,
                                               "parameters": TOOL.parameters}}]
    asked = [(template, case) for template, (_, several, _) in TEMPLATES.items()
             for case in [*CASES, *(PARALLEL if several else [])]]
    done = subprocess.run([environment, "-c", RENDER], capture_output=True, text=True, check=True, input=json.dumps(
        [(template, tools, conversation(case)) for template, case in asked]))
    for (template, case), text in zip(asked, json.loads(done.stdout), strict=True):
        name, _, same = TEMPLATES[template]
        answer, types = text.partition("THE TASK")[2], Types([TOOL])
        heard = hear(answer, FAMILIES[name], types)
        calls = [item for item in heard.found if isinstance(item, ToolCall)]
        assert [(call.name, call.arguments, call.error) for call in calls] == [
            ("bash", arguments, None) for arguments in case], (template, answer)
        written = FAMILIES[name].write("", [ToolCall(id="", name="bash", arguments=each) for each in case], types)
        assert written in answer or not same, (template, written, answer)
