"""Families whose call is one JSON object with a name: Hermes and Qwen, Llama 3, Mistral (and its later form).

Sources: the chat templates of Qwen/Qwen2.5-7B-Instruct and NousResearch/Hermes-3, meta-llama/Llama-3.1-8B-Instruct,
mistralai/Mistral-7B-Instruct-v0.3; mistral-common for Mistral's later form; vLLM's parsers hermes,
llama3_json, mistral.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from woodshed.harness.dialects.cursor import Cursor
from woodshed.harness.dialects.families.family import Found, after, as_json, lines
from woodshed.harness.dialects.shield import Shield, dumped
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ToolSpec
from woodshed.model import ToolCall

TOOLS_IN_TAGS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

"""
_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")


class Hermes:
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

    name = "hermes"
    openers = ("<tool_call>",)
    first = ""
    silent = False
    shield = Shield(r"/?tool_(?:call|response)>")

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Of Qwen2.5's template."""
        return TOOLS_IN_TAGS.format(tools=lines(tools)) + (
            "For each function call, return a json object with function name and arguments within "
            "<tool_call></tool_call> XML tags:\n<tool_call>\n"
            '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>')

    def write(self, said: str, calls: Sequence[ToolCall], types: Types) -> str:
        """Each call in tags of its own."""
        written = [dumped({"name": call.name, "arguments": call.arguments}, ("<tool_call>", "</tool_call>"))
                   for call in calls]
        return after(said, "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written))

    def around(self, call: ToolCall) -> tuple[str, str]:
        """Tags."""
        return "<tool_response>", "</tool_response>"

    def read(self, body: str, types: Types) -> Iterator[Found]:
        """An object after each opening tag; a closing one may be missing."""
        cursor = Cursor(body)
        while cursor.until("<tool_call>") is not None:
            yield cursor.named(("arguments", "parameters"), "</tool_call>", "<tool_call>")


class LlamaJson:
    """``{"name": …, "parameters": {…}}``, several with ``;`` between them, after ``<|python_tag|>`` or as they are."""

    name = "llama-json"
    openers = ("<|python_tag|>", '{"name"', '{"type": "function"')
    first = "{"
    silent = False
    shield = Shield(r"\|(?:eot_id|eom_id|start_header_id|end_header_id|python_tag)\|>")

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Of Llama 3.1's template."""
        return ("Given the following functions, please respond with a JSON for a function call with its proper "
                "arguments that best answers the given prompt.\n\nRespond in the format {\"name\": function name, "
                "\"parameters\": dictionary of argument name and its value}. Do not use variables.\n\n"
                + "\n\n".join(json.dumps(as_json(tool), indent=4, ensure_ascii=False) for tool in tools))

    def write(self, said: str, calls: Sequence[ToolCall], types: Types) -> str:
        """As vLLM's parser takes several."""
        return after(said, "; ".join(dumped({"name": call.name, "parameters": call.arguments}, ("<|python_tag|>",))
                                     for call in calls))

    def around(self, call: ToolCall) -> tuple[str, str]:
        """Nothing: the role of its template (ipython) is no part of the text."""
        return f"Output of {call.name}:", ""

    def read(self, body: str, types: Types) -> Iterator[Found]:
        """Objects one after the other. An object without a name is an answer in JSON, and no call."""
        cursor = Cursor(body)
        tagged = cursor.takes("<|python_tag|>")
        while cursor.blank().sees("{"):
            found = cursor.named(("parameters", "arguments"), "<|python_tag|>", bare=tagged)
            if tagged or isinstance(found, ToolCall):
                yield found
            if not isinstance(found, ToolCall) or found.error:
                return
            tagged = cursor.blank().takes(";", ",", "<|python_tag|>", "<|eom_id|>", "<|eot_id|>") or tagged
        if tagged and not cursor.over and cursor.at <= len("<|python_tag|>\n"):
            yield "what follows <|python_tag|> is no JSON object"


@dataclass(frozen=True)
class Mistral:
    """``[TOOL_CALLS]`` and a JSON array of calls, or (``later``) before each name, with ``[ARGS]`` and an object."""

    name: str
    later: bool
    openers = ("[TOOL_CALLS]",)
    first = ""
    silent = False
    shield = Shield(r"(?!)")

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as its tokenizer writes them, and the form, of which its models are told nothing."""
        form = '[TOOL_CALLS]NAME[ARGS]{"argument": "value"}' if self.later else (
            '[TOOL_CALLS] [{"name": "NAME", "arguments": {"argument": "value"}}]')
        offered = json.dumps([as_json(tool) for tool in tools], ensure_ascii=False)
        return f"[AVAILABLE_TOOLS]{offered}[/AVAILABLE_TOOLS]\nCall tools like this: {form}"

    def write(self, said: str, calls: Sequence[ToolCall], types: Types) -> str:
        """All calls; in the first form with their ids, where they are such as Mistral's tokenizer takes."""
        marks = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
        if self.later:
            return after(said, "".join(f"[TOOL_CALLS]{call.name}[ARGS]{dumped(call.arguments, marks)}"
                                       for call in calls), "")
        objects = [{"name": call.name, "arguments": call.arguments}
                   | ({"id": call.id} if _MISTRAL_ID.fullmatch(call.id) else {}) for call in calls]
        return after(said, f"[TOOL_CALLS] {dumped(objects, marks)}" if calls else "", "")

    def around(self, call: ToolCall) -> tuple[str, str]:
        """Marks."""
        return "[TOOL_RESULTS]", "[/TOOL_RESULTS]"

    def read(self, body: str, types: Types) -> Iterator[Found]:
        """Both forms."""
        cursor = Cursor(body)
        while cursor.until("[TOOL_CALLS]") is not None:
            if cursor.blank().sees("{"):
                yield cursor.named(("arguments", "parameters"), "[TOOL_CALLS]")
            elif cursor.takes("["):
                yield from _array(cursor)
            else:
                yield _later(cursor)


def _array(cursor: Cursor) -> Iterator[Found]:
    while not cursor.blank().takes("]") and not cursor.over:
        yield (found := cursor.named(("arguments", "parameters"), "[TOOL_CALLS]"))
        if isinstance(found, str) or found.error:
            return
        cursor.blank().takes(",")


def _later(cursor: Cursor) -> Found:
    name = cursor.to("{", "[ARGS]", "[CALL_ID]", "[TOOL_CALLS]", "\n").strip()
    if cursor.takes("[CALL_ID]"):
        cursor.to("{", "[ARGS]", "[TOOL_CALLS]")
    cursor.takes("[ARGS]")
    return cursor.arguments(name, "[TOOL_CALLS]") if name else "a name is missing after [TOOL_CALLS]"


HERMES = Hermes()
LLAMA_JSON = LlamaJson()
MISTRAL = Mistral("mistral", later=False)
MISTRAL_V11 = Mistral("mistral-v11", later=True)
