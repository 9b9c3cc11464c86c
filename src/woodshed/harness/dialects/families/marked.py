"""Families whose calls stand between special tokens, with arguments in JSON: DeepSeek V3 and V3.1, Kimi K2.

Sources: the chat templates of deepseek-ai/DeepSeek-V3-0324, deepseek-ai/DeepSeek-V3.1 and moonshotai/Kimi-K2-Instruct
(with its docs/tool_call_guidance.md); vLLM's parsers deepseek_v3, deepseek_v31, kimi_k2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from woodshed.harness.dialects.cursor import Cursor
from woodshed.harness.dialects.families.family import Found, after, as_json
from woodshed.harness.dialects.shield import Shield, dumped
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ToolSpec
from woodshed.model import ToolCall

_ALL, _NO_MORE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEP, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_DEEPSEEK_MARKS = (_ALL, _NO_MORE, _CALL, _SEP, _END, "\n```", "```json")
_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_BEGIN, _ARGUMENTS, _DONE = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


@dataclass(frozen=True)
class DeepSeek:
    """``function<｜tool▁sep｜>NAME`` with JSON in a fence; or (``bare``) ``NAME<｜tool▁sep｜>{…}``."""

    name: str
    bare: bool
    openers = (_ALL, _CALL)
    first = ""
    silent = False
    shield = Shield(r"｜(?:tool▁|end▁of|User｜|Assistant｜)")

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Of DeepSeek V3.1's template; V3's own leaves the format to the model."""
        told = "\n\n".join(f"### {tool.name}\nDescription: {tool.description}\n\nParameters: "
                           f"{json.dumps(dict(tool.parameters), ensure_ascii=False)}" for tool in tools)
        form = self.write("", [ToolCall(id="", name="tool_call_name")], Types(())).replace("{}", "tool_call_arguments")
        return (f"## Tools\nYou have access to the following tools:\n\n{told}\n\n"
                f"IMPORTANT: ALWAYS adhere to this exact format for tool use:\n{form}\n\nWhere:\n\n"
                "- `tool_call_name` must be an exact match to one of the available tools\n"
                "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
                "- For multiple tool calls, chain them directly without separators or spaces")

    def write(self, said: str, calls: Sequence[ToolCall], types: Types) -> str:
        """All calls in one section."""
        written = [(call.name, dumped(call.arguments, _DEEPSEEK_MARKS)) for call in calls]
        if self.bare:
            inside = "".join(f"{_CALL}{name}{_SEP}{text}{_END}" for name, text in written)
        else:
            inside = "\n".join(f"{_CALL}function{_SEP}{name}\n```json\n{text}\n```{_END}" for name, text in written)
        return after(said, f"{_ALL}{inside}{_NO_MORE}" if calls else "", "")

    def around(self, call: ToolCall) -> tuple[str, str]:
        """Marks."""
        return "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"

    def read(self, body: str, types: Types) -> Iterator[Found]:
        """Both forms."""
        cursor = Cursor(body)
        while cursor.until(_CALL) is not None:
            head = cursor.to(_SEP, _CALL, _END).strip()
            if not cursor.takes(_SEP):
                yield f"{_SEP} is missing after the name"
                return
            if head == "function":
                head = cursor.to("\n", "{", _END).strip()
                cursor.blank().takes("```json", "```")
            yield cursor.arguments(head, "\n```", _END, _CALL)


class Kimi:
    """``functions.NAME:INDEX<|tool_call_argument_begin|>{…}``, in a section."""

    name = "kimi"
    openers = (_SECTION, _BEGIN)
    first = ""
    silent = False
    shield = Shield(r"\|(?:tool_call|im_)")

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as its template declares them, and the form."""
        offered = json.dumps([as_json(tool) for tool in tools], ensure_ascii=False, separators=(",", ":"))
        form = self.write("", [ToolCall(id="", name="NAME", arguments={"argument": "value"})], Types(()))
        return f"# Tools\n\n{offered}\n\nCall tools like this, the number counting your calls:\n{form}"

    def write(self, said: str, calls: Sequence[ToolCall], types: Types) -> str:
        """All calls in one section, counted from 0."""
        marks = (_SECTION, _SECTION_END, _BEGIN, _ARGUMENTS, _DONE)
        inside = "".join(f"{_BEGIN}functions.{call.name}:{count}{_ARGUMENTS}{dumped(call.arguments, marks)}{_DONE}"
                         for count, call in enumerate(calls))
        return after(said, f"{_SECTION}{inside}{_SECTION_END}" if calls else "", "")

    def around(self, call: ToolCall) -> tuple[str, str]:
        """A heading, as its template has it."""
        return f"## Return of functions.{call.name}", ""

    def read(self, body: str, types: Types) -> Iterator[Found]:
        """Ids without ``functions.`` or without a number are names, too."""
        cursor = Cursor(body)
        while cursor.until(_BEGIN) is not None:
            ident = cursor.to(_ARGUMENTS, _BEGIN, _DONE, "{").strip()
            cursor.takes(_ARGUMENTS)
            name, _, count = ident.rpartition(":")
            name = name if name and count.strip().isdecimal() else ident
            yield cursor.arguments(name.removeprefix("functions."), _DONE, _BEGIN, _SECTION_END)


DEEPSEEK_V3 = DeepSeek("deepseek-v3", bare=False)
DEEPSEEK_V31 = DeepSeek("deepseek-v3.1", bare=True)
KIMI = Kimi()
