"""Families that write each argument between tags, as plain text: Qwen3-Coder, DeepSeek V3.2 and V4, MiniMax M2, GLM.

Sources: the chat templates of Qwen/Qwen3-Coder-30B-A3B-Instruct, MiniMaxAI/MiniMax-M2 and zai-org/GLM-4.5 (4.7 leaves
the line breaks out); encoding/encoding_dsv32.py of deepseek-ai/DeepSeek-V3.2; vLLM's parsers qwen3_coder, deepseek_v32,
deepseek_v4, minimax_m2, glm45, glm47.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from woodshed.harness.dialects.cursor import Cursor, Wrong, any_of, storable
from woodshed.harness.dialects.families import told
from woodshed.harness.dialects.families.family import Found, after, broken, lines
from woodshed.harness.dialects.families.objects import TOOLS_IN_TAGS
from woodshed.harness.dialects.shield import Shield, dumped
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ToolSpec
from woodshed.model import ToolCall, printable

_EXAMPLE = ToolCall(id="", name="example_function_name", arguments={
    "example_parameter_1": "value_1",
    "example_parameter_2": "This is the value for the second parameter\nthat can span\nmultiple lines"})


@dataclass(frozen=True)
class Tags:
    """The marks of one family. ``before`` and ``after`` stand around a call, or around ``all`` of an answer's."""

    call: str
    name_end: str
    parameter: str
    key_end: str
    value_end: str
    call_end: str
    before: str = ""
    after: str = ""
    all: bool = False
    lines: bool = False
    """Values stand on lines of their own."""
    attributes: bool = False
    """Names stand in quotes, and others may follow them."""
    told: bool = False
    """``string="true"`` or ``"false"`` says whether a value is text or JSON."""


@dataclass(frozen=True)
class Tagged:
    """A call, and each argument in it, between tags."""

    name: str
    tags: Tags
    openers: tuple[str, ...]
    shield: Shield
    result: tuple[str, str]
    intro: str
    listed: Callable[[Sequence[ToolSpec]], str] = lines
    """Tools as its template lists them."""
    first = ""
    silent = False

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """The tools in JSON, and an example."""
        return self.intro.format(tools=self.listed(tools), form=self.write("", [_EXAMPLE], Types(())))

    def write(self, said: str, calls: Sequence[ToolCall], types: Types) -> str:
        """Each call in its tags."""
        tags = self.tags
        written = [self._written(call, types) for call in calls]
        if tags.all:
            return after(said, f"{tags.before}{''.join(written)}{tags.after}" if calls else "", "\n\n")
        return after(said, "\n".join(f"{tags.before}{call}{tags.after}" for call in written), "\n\n")

    def around(self, call: ToolCall) -> tuple[str, str]:
        """Tags."""
        return self.result

    def read(self, body: str, types: Types) -> Iterator[Found]:
        """Calls whether or not something stands around them; one that is not ended is none, for its half might run."""
        cursor = Cursor(body)
        while cursor.until(self.tags.call) is not None:
            start = cursor.at
            name = html.unescape(cursor.until(self.tags.name_end) or "").strip()
            if self.tags.attributes:
                cursor.until(">")
            try:
                arguments = self._arguments(cursor, name, types)
            except Wrong as why:
                yield broken(name[:60], body[start:], why)
                return
            else:
                yield ToolCall(id="", name=printable(name), arguments=arguments)

    def _written(self, call: ToolCall, types: Types) -> str:
        tags, end = self.tags, "\n" if self.tags.lines or self.tags.all else ""
        parts = [self._value(call.name, key, value, types) + end for key, value in call.arguments.items()]
        close = ">" if tags.attributes else ""
        return f"{tags.call}{html.escape(call.name)}{tags.name_end}{close}{end}{''.join(parts)}{tags.call_end}{end}"

    def _value(self, tool: str, key: str, value: Any, types: Types) -> str:
        tags = self.tags
        told = f' string="{"true" if isinstance(value, str) else "false"}"' if tags.told else ""
        told += ">" if tags.attributes else ""
        if tags.told and not isinstance(value, str):
            text = dumped(value, (tags.value_end, tags.parameter, tags.call_end))
        else:
            text = self.shield.on(value if tags.told else types.write(tool, key, value))
        text = f"\n{text}\n" if tags.lines else text
        return f"{tags.parameter}{html.escape(key)}{tags.key_end}{told}{text}{tags.value_end}"

    def _arguments(self, cursor: Cursor, name: str, types: Types) -> dict[str, Any]:
        tags, found = self.tags, dict[str, Any]()
        while not cursor.blank().takes(tags.call_end):
            if tags.after and cursor.sees(tags.after.strip()):
                break
            if not cursor.takes(tags.parameter):
                raise cursor.wrong(f"{tags.call_end} is missing")
            key = cursor.until(tags.key_end)
            if key is None:
                raise cursor.wrong(f"{tags.key_end} is missing after the argument's name")
            key = html.unescape(key)
            told = cursor.until(">") if tags.attributes else None
            text = value_to(cursor, tags.value_end, (tags.parameter, tags.call_end), tags.call_end)
            if tags.lines:
                text = text.removeprefix("\n").removesuffix("\n")
            found[key] = self._read(name, key, text, told, types)
        return _stored(found)

    def _read(self, tool: str, key: str, text: str, told: str | None, types: Types) -> Any:
        if told is None or "string=" not in told:
            return types.read(tool, key, self.shield.off(text))
        if 'string="false"' not in told:
            return self.shield.off(text)
        try:
            return Cursor(text).json()
        except Wrong as why:
            raise Wrong(f"the value of '{printable(key[:60])}' is {why}; text needs string=\"true\"") from None


class Glm:
    """``<tool_call>NAME`` and then ``<arg_key>K</arg_key>``, ``<arg_value>V</arg_value>``."""

    name = "glm"
    openers = ("<tool_call>",)
    first = ""
    silent = False
    shield = Shield(r"/?(?:tool_call|tool_response|arg_key|arg_value)>")

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Of GLM-4.5's template."""
        return TOOLS_IN_TAGS.format(tools=lines(tools)) + (
            "For each function call, output the function name and arguments within the following XML format:\n"
            "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n"
            "<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>")

    def write(self, said: str, calls: Sequence[ToolCall], types: Types) -> str:
        """Each call in its tags, each part on its line."""
        hide = self.shield.on
        written = []
        for call in calls:
            pairs = [f"<arg_key>{hide(key)}</arg_key>\n<arg_value>{hide(types.write(call.name, key, value))}"
                     "</arg_value>\n" for key, value in call.arguments.items()]
            written.append(f"<tool_call>{call.name}\n{''.join(pairs)}</tool_call>")
        return after(said, "\n".join(written))

    def around(self, call: ToolCall) -> tuple[str, str]:
        """Tags."""
        return "<tool_response>", "</tool_response>"

    def read(self, body: str, types: Types) -> Iterator[Found]:
        """With line breaks between the parts or without; a call that is not ended is none."""
        cursor = Cursor(body)
        while cursor.until("<tool_call>") is not None:
            start = cursor.at
            name = cursor.to("<arg_key>", "</tool_call>", "<tool_call>").strip()
            try:
                yield ToolCall(id="", name=printable(name), arguments=self._arguments(cursor, name, types))
            except Wrong as why:
                yield broken(name.partition("\n")[0][:60], body[start:], why)
                return

    def _arguments(self, cursor: Cursor, name: str, types: Types) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not cursor.blank().takes("</tool_call>"):
            if not cursor.takes("<arg_key>"):
                raise cursor.wrong("</tool_call> is missing")
            key = self.shield.off(value_to(cursor, "</arg_key>", ("<arg_value>",), "</tool_call>"))
            cursor.needs("<arg_value>")
            text = value_to(cursor, "</arg_value>", ("<arg_key>", "</tool_call>"), "</tool_call>")
            found[key] = types.read(name, key, self.shield.off(text))
        return _stored(found)


def value_to(cursor: Cursor, end: str, follows: tuple[str, ...], stop: str) -> str:
    """The text to the first ``end`` after which one of ``follows`` stands, or nothing; with the cursor past it.

    So a model may write an ``end`` inside a value. Where none is such before ``stop``, it is the first. Raises Wrong
    without any.
    """
    start, first = cursor.at, -1
    for mark in any_of((end, stop)).finditer(cursor.text, start):
        if mark[0] == stop and first < 0:
            continue
        if mark[0] == stop:
            break
        first = first if first >= 0 else mark.start()
        cursor.at = mark.end()
        if cursor.blank().over or any(cursor.sees(follow) for follow in follows):
            cursor.at = mark.end()
            return cursor.text[start:mark.start()]
    cursor.at = start
    if first < 0:
        raise cursor.wrong(f"{end} is missing")
    cursor.at = first + len(end)
    return cursor.text[start:first]


def _stored(found: Mapping[str, Any]) -> dict[str, Any]:
    try:
        storable(found)
    except ValueError:
        raise Wrong("not well formed: a value cannot be stored (infinity, or half of a surrogate pair)") from None
    return dict(found)


QWEN_CODER = Tagged(
    "qwen-coder", Tags("<function=", ">", "<parameter=", ">", "</parameter>", "</function>", "<tool_call>\n",
                       "</tool_call>", lines=True),
    ("<tool_call>", "<function="), Shield(r"/?(?:tool_call|tool_response|function|parameter)[=>]"),
    ("<tool_response>", "</tool_response>"), told.QWEN)
MINIMAX = Tagged(
    "minimax", Tags('<invoke name="', '"', '<parameter name="', '"', "</parameter>", "</invoke>",
                    "<minimax:tool_call>\n", "</minimax:tool_call>", all=True, attributes=True),
    ("<minimax:tool_call>", '<invoke name="'), Shield(r"/?(?:minimax:tool_call|invoke|parameter|response)[\s>]"),
    ("<response>", "</response>"), told.MINIMAX, told.tagged)


def _dsml(name: str, wrapper: str, result: tuple[str, str], intro: str) -> Tagged:
    mark = "｜DSML｜"
    tags = Tags(f'<{mark}invoke name="', '"', f'<{mark}parameter name="', '"', f"</{mark}parameter>",
                f"</{mark}invoke>", f"<{mark}{wrapper}>\n", f"</{mark}{wrapper}>", all=True, attributes=True,
                told=True)
    return Tagged(name, tags, (f"<{mark}function_calls>", f"<{mark}tool_calls>", f"<{mark}invoke "),
                  Shield(rf"/?(?:{mark}|function_results>|result>|tool_result>)"), result, intro, told.functions)


DEEPSEEK_V32 = _dsml("deepseek-v3.2", "function_calls",
                     ("<function_results>\n<result>", "</result>\n</function_results>"), told.DEEPSEEK_V32)
DEEPSEEK_V4 = _dsml("deepseek-v4", "tool_calls", ("<tool_result>", "</tool_result>"), told.DEEPSEEK_V4)
GLM = Glm()
