"""gpt-oss: Harmony, where every message has a channel, and a call a recipient.

Source: the OpenAI Harmony response format (openai/harmony, docs/format.md), which allows the recipient before or after
the channel. ``openai-harmony`` reads token ids and fetches a vocabulary; here is its text, as endpoints give it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from woodshed.harness.dialects.cursor import Cursor
from woodshed.harness.dialects.families.family import Found, Words
from woodshed.harness.dialects.shield import Shield, dumped
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ToolSpec
from woodshed.model import ToolCall

_ENDS = ("<|call|>", "<|end|>", "<|return|>", "<|start|>")
_TO = re.compile(r"(?:^|[\s>])to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_MARKS = (*_ENDS, "<|channel|>", "<|message|>", "<|constrain|>")
_TYPES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_DEEPEST = 40  # signs of indentation


class Harmony:
    """``<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>``."""

    name = "gpt-oss"
    openers = ("<|channel|>", "<|start|>", "<|message|>", " to=functions.")
    first = ""
    silent = True
    shield = Shield(r"\|(?:start|end|message|channel|constrain|return|call)\|>")

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Of the developer message that the format describes."""
        declared = "\n\n".join(_declared(tool) for tool in tools)
        return ("# Valid channels: analysis, commentary, final. Channel must be included for every message.\n"
                "Calls to these tools must go to the commentary channel: 'functions'.\n\n"
                f"# Tools\n\n## functions\n\nnamespace functions {{\n\n{declared}\n\n}} // namespace functions")

    def write(self, said: str, calls: Sequence[ToolCall], types: Types) -> str:
        """What follows ``<|start|>assistant``: words as a preamble, or as the final message where no call follows."""
        channel = "commentary" if calls else "final"
        parts = [f"<|channel|>{channel}<|message|>{said}{'<|end|>' if calls else '<|return|>'}"] if said else []
        parts += [f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>"
                  f"{dumped(call.arguments, _MARKS)}<|call|>" for call in calls]
        return "<|start|>assistant".join(parts)

    def around(self, call: ToolCall) -> tuple[str, str]:
        """The message of the tool."""
        return f"<|start|>functions.{call.name} to=assistant<|channel|>commentary<|message|>", "<|end|>"

    def read(self, body: str, types: Types) -> Iterator[Found]:
        """Message by message; analysis is thought, and not said."""
        cursor = Cursor(body)
        while (head := cursor.until("<|message|>")) is not None:
            head = head.rpartition("<|start|>")[2]
            to, channel = _TO.search(head), _CHANNEL.search(head)
            if to and to[1] != "assistant":
                yield cursor.arguments(to[1].removeprefix("functions."), *_ENDS)
                cursor.to(*_ENDS)
            else:
                said = cursor.to(*_ENDS)
                if channel is None or channel[1] != "analysis":
                    yield Words(said)


def _declared(tool: ToolSpec) -> str:
    """As openai-harmony writes a tool, which a test holds against this."""
    about = "".join(f"// {line}\n" for line in tool.description.split("\n"))
    return f"{about}type {tool.name} = (_: {_kind(tool.parameters)}) => any;"


def _object(schema: Mapping[str, Any], indent: str) -> str:
    properties, required = schema.get("properties"), schema.get("required")
    fields = [
        _field(key, value, isinstance(required, list | tuple) and key in required, indent)
        for key, value in (properties.items() if isinstance(properties, Mapping) else ())]
    return "{\n" + "".join(fields) + indent + "}"


def _field(key: str, schema: Any, required: bool, indent: str) -> str:
    if not isinstance(schema, Mapping):
        schema = {}
    about = f"{indent}// {said}\n" if (said := schema.get("description")) else ""
    default = schema.get("default")
    told = json.dumps(default, ensure_ascii=False) if not isinstance(default, str) or "enum" not in schema else default
    end = f", // default: {told}" if default is not None else ","
    return f"{about}{indent}{key}{'' if required else '?'}: {_kind(schema, indent + '    ')}{end}\n"


def _kind(schema: Any, indent: str = "") -> str:
    """The type that a schema is in TypeScript; ``any`` for what says nothing."""
    if not isinstance(schema, Mapping) or len(indent) > _DEEPEST:
        return "any"
    if isinstance(options := schema.get("oneOf"), list):
        return " | ".join(_kind(option, indent) for option in options)
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_TYPES.get(str(each), str(each)) for each in kind)
    if kind == "object":
        about = f"{indent}// {said}\n" if (said := schema.get("description")) else ""
        return about + _object(schema, indent)
    if kind == "array":
        return f"{_kind(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
    if kind == "string" and isinstance(values := schema.get("enum"), list):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
    return _TYPES.get(kind, "any") if isinstance(kind, str) else "any"


GPT_OSS = Harmony()
