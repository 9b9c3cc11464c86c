"""Families that call as Python does: Llama 3.2 and 4 (with what they share with Olmo 3), LFM2.

Sources: Meta's prompt formats for Llama 3.2 and 4; the chat template of LiquidAI/LFM2-1.2B; vLLM's parsers pythonic,
llama4_pythonic, olmo3, lfm2.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from woodshed.harness.dialects.cursor import Cursor, Wrong, storable
from woodshed.harness.dialects.families.family import Found, after, as_json, broken
from woodshed.harness.dialects.literal import Python, items
from woodshed.harness.dialects.shield import Shield
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ToolSpec
from woodshed.model import ToolCall, printable

_NAME = re.compile(r"[^\W\d][\w.:/-]*")
_KEY = re.compile(r"[^\W\d]\w*")
_WRAPPERS = ("<|python_start|>", "<|python_tag|>", "<|tool_call_start|>", "<function_calls>")


@dataclass(frozen=True)
class Pythonic:
    """``[f(a=1), g()]``, between marks in some families. An argument whose key is no name stands in ``**{…}``."""

    name: str
    told: str
    marks: tuple[str, str]
    result: tuple[str, str]
    openers: tuple[str, ...]
    first: str
    shield: Shield
    silent: bool = False

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Of the family's documentation."""
        return self.told.format(tools=json.dumps([as_json(tool)["function"] for tool in tools], ensure_ascii=False))

    def write(self, said: str, calls: Sequence[ToolCall], types: Types) -> str:
        """All calls in one list."""
        inside = ", ".join(f"{call.name}({_written(call.arguments)})" for call in calls)
        return after(said, f"{self.marks[0]}[{inside}]{self.marks[1]}" if calls else "")

    def around(self, call: ToolCall) -> tuple[str, str]:
        """Marks, where the family has any."""
        return self.result

    def read(self, body: str, types: Types) -> Iterator[Found]:
        """Lists of calls; after a mark, calls on lines of their own, too. A list of something else is no call."""
        cursor = Cursor(body)
        while True:
            marked = cursor.blank().takes(*_WRAPPERS)
            cursor.blank().takes("[")
            while found := _NAME.match(cursor.text, cursor.blank().at):
                if cursor.text[found.end():found.end() + 1] != "(":
                    break
                cursor.at = found.end() + 1
                try:
                    yield ToolCall(id="", name=printable(found[0]), arguments=_arguments(cursor))
                except Wrong as why:
                    yield broken(found[0], body[found.start():], why)
                    return
                cursor.blank().takes(",")
            else:
                if marked and not cursor.sees("]") and not cursor.sees("<"):
                    yield "no call follows the mark: it needs [name(argument=value)]"
                    return
            cursor.to(*_WRAPPERS, "\n[")
            if cursor.over:
                return


def _arguments(cursor: Cursor) -> dict[str, Any]:
    values, found = Python(), dict[str, Any]()

    def one() -> None:
        if cursor.takes("**"):
            more = values.read(cursor)
            if not isinstance(more, dict):
                raise cursor.wrong("** needs a dictionary")
            found.update(more)
            return
        key = _KEY.match(cursor.text, cursor.at)
        if key is None:
            raise cursor.wrong("an argument needs its name, name=value")
        cursor.at = key.end()
        cursor.needs("=")
        found[key[0]] = values.read(cursor)

    items(cursor, ")", one)
    try:
        storable(found)
    except ValueError:
        raise Wrong("not well formed: a value cannot be stored (infinity, or half of a surrogate pair)") from None
    return found


def _written(arguments: dict[str, Any]) -> str:
    values = Python()
    return ", ".join(f"{key}={values.write(value)}" if _KEY.fullmatch(key) and not keyword.iskeyword(key)
                     else f"**{values.write({key: value})}" for key, value in arguments.items())


LLAMA_PYTHONIC = Pythonic(
    "llama-pythonic",
    "You have access to the following functions. If you decide to invoke any of them, put it in the format of "
    "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)] and include no other "
    "text in the response.\n\n{tools}",
    ("", ""), ("", ""), ("<|python_start|>", "<|python_tag|>", "<function_calls>", "\n["), "[",
    Shield(r"\|(?:eot|eom|eot_id|eom_id|python_start|python_end|start_header_id|header_start)\|>"))
LFM2 = Pythonic(
    "lfm2", "List of tools: <|tool_list_start|>{tools}<|tool_list_end|>\nCall tools like this: "
    '<|tool_call_start|>[name(argument="value")]<|tool_call_end|>',
    ("<|tool_call_start|>", "<|tool_call_end|>"), ("<|tool_response_start|>", "<|tool_response_end|>"),
    ("<|tool_call_start|>",), "", Shield(r"\|(?:tool_|im_)"))
