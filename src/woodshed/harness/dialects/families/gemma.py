"""Gemma's formats: FunctionGemma and Gemma 4, which differ in their marks.

Sources: the chat templates of google/functiongemma-270m-it and google/gemma-4 (as kept in TRL's trl/chat_templates);
vLLM's parsers functiongemma and gemma4. Its templates sort arguments and write null as None; both are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from woodshed.harness.dialects.cursor import Cursor, Wrong, storable
from woodshed.harness.dialects.families.family import Found, after, broken
from woodshed.harness.dialects.literal import Gemma as Values
from woodshed.harness.dialects.shield import Shield
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ToolSpec
from woodshed.model import ToolCall, printable


@dataclass(frozen=True)
class Gemma:
    """``call:NAME{key:value,…}`` between marks; strings stand between ``quote`` marks, without escapes."""

    name: str
    quote: str
    call: tuple[str, str]
    response: tuple[str, str]
    declaration: tuple[str, str]
    shield: Shield
    first: str = ""
    silent: bool = False

    @property
    def openers(self) -> tuple[str, ...]:
        """The mark before a call."""
        return (self.call[0],)

    @property
    def values(self) -> Values:
        """Reads and writes arguments."""
        return Values(self.quote, self.shield)

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Declarations as the template makes them, and the form."""
        declared = "".join(self.declared(tool) for tool in tools)
        form = self.write("", [ToolCall(id="", name="NAME", arguments={"argument": "value"})], Types(()))
        return f"You can do function calling with the following functions:\n{declared}\nCall them like this: {form}"

    def declared(self, tool: ToolSpec) -> str:
        """A tool's declaration: keys in order, as the template sorts them."""
        return (f"{self.declaration[0]}declaration:{tool.name}"
                f"{self.values.write(_declared(tool))}{self.declaration[1]}")

    def write(self, said: str, calls: Sequence[ToolCall], types: Types) -> str:
        """Each call between its marks."""
        return after(said, "".join(f"{self.call[0]}call:{call.name}{{{self.values.inside(call.arguments)}}}"
                                   f"{self.call[1]}" for call in calls), "")

    def around(self, call: ToolCall) -> tuple[str, str]:
        """A response with one value."""
        return (f"{self.response[0]}response:{call.name}{{value:{self.quote}", f"{self.quote}}}{self.response[1]}")

    def read(self, body: str, types: Types) -> Iterator[Found]:
        """``call:`` may be missing, and the mark at the end; a call whose braces are not closed is none."""
        cursor = Cursor(body)
        while cursor.until(self.call[0]) is not None:
            start = cursor.blank().at
            cursor.takes("call:")
            name = cursor.to("{", self.call[1], self.call[0]).strip()
            try:
                cursor.needs("{")
                arguments = self.values.pairs(cursor)
                storable(arguments)
            except (Wrong, ValueError) as why:
                yield broken(name[:60], body[start:], why)
                return
            else:
                yield ToolCall(id="", name=printable(name), arguments=arguments)


def _declared(tool: ToolSpec) -> dict[str, Any]:
    parameters = {key: value for key, value in _schema(tool.parameters).items()
                  if value or key not in ("properties", "required")}
    return {"description": tool.description, "parameters": parameters}


_TOLD = frozenset({"description", "enum", "items", "nullable", "properties", "required", "type"})


def _schema(schema: Mapping[str, Any], *, all_of_it: bool = False) -> dict[str, Any]:
    """As the template writes a schema: keys and parameters in order, types in capitals, and what it knows of the rest.

    Of an array's items it writes ``all_of_it``.
    """
    made: dict[str, Any] = {}
    for key, value in sorted(schema.items()):
        if key == "properties" and isinstance(value, Mapping):
            made[key] = {name: _schema(one) if isinstance(one, Mapping) else one
                         for name, one in sorted(value.items(), key=lambda pair: pair[0].lower())}
        elif key == "items" and isinstance(value, Mapping):
            made[key] = _schema(value, all_of_it=True)
        elif key == "type":
            made[key] = value.upper() if isinstance(value, str) else value
        elif all_of_it or key in _TOLD:
            made[key] = value
    if made.get("type") == "OBJECT" and not all_of_it:
        made.setdefault("properties", {})
    return dict(sorted(made.items()))


FUNCTIONGEMMA = Gemma(
    "functiongemma", "<escape>", ("<start_function_call>", "<end_function_call>"),
    ("<start_function_response>", "<end_function_response>"),
    ("<start_function_declaration>", "<end_function_declaration>"),
    Shield(r"(?:escape|start_of_turn|end_of_turn|(?:start|end)_function_\w{4,11})>"))
GEMMA = Gemma(
    "gemma", '<|"|>', ("<|tool_call>", "<tool_call|>"), ("<|tool_response>", "<tool_response|>"),
    ("<|tool>", "<tool|>"), Shield(r'\|"\|>|\|?(?:turn|tool_call|tool_response|channel|tool)\|?>'))
