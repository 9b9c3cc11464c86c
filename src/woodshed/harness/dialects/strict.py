"""strict: native tool calls whose arguments the server holds to their schema, by the rules of OpenAI's strict mode.

Source: OpenAI's guide to structured outputs ("supported schemas"): every property of an object is required, none else
is allowed; what is optional may be null instead. vLLM and SGLang take the same flag for guided decoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from woodshed.harness.dialects.families import Family
from woodshed.harness.dialects.native import Auto, Tools
from woodshed.harness.dialects.reading import Dialect, Reading
from woodshed.interfaces import ModelResponse, ToolSpec
from woodshed.model import ToolCall
from woodshed.model.exchange import ChatFormat


class Strict:
    """As ``tools``, with strict schemas; as ``auto`` where the server refuses them."""

    name = "strict"
    chat: ChatFormat | None = None
    prose_finishes = False

    def __init__(self, family: Family | None = None) -> None:
        self.fallback: Dialect | None = Auto(family)
        self._tools = Tools()

    def offers(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """All of them, each as strictly as it can be said."""
        return tuple(replace(tool, parameters=strictly(tool.parameters), strict=True) for tool in tools)

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """As for native calls."""
        return self._tools.manual(tools)

    def read(self, response: ModelResponse, tools: Sequence[ToolSpec] = ()) -> Reading:
        """What the server parsed; null for what is optional means that it was left out."""
        reading = self._tools.read(response, tools)
        declared = {tool.name: tool.parameters for tool in tools}
        calls = tuple(_without_nulls(call, declared.get(call.name, {})) for call in reading.calls)
        return replace(reading, calls=calls)


def strictly(schema: Mapping[str, Any]) -> dict[str, Any]:
    """``schema`` by the rules of strict mode, objects inside it too."""
    made = dict(schema)
    if isinstance(items := schema.get("items"), Mapping):
        made["items"] = strictly(items)
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), list):
            made[key] = [strictly(option) if isinstance(option, Mapping) else option for option in options]
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        required = schema.get("required", ())
        made["properties"] = {key: _optional(strictly(value), key in required) if isinstance(value, Mapping) else value
                              for key, value in properties.items()}
        made["required"] = list(properties)
        made["additionalProperties"] = False
    return made


def _optional(schema: dict[str, Any], required: bool) -> dict[str, Any]:
    kind = schema.get("type")
    if required or kind is None:
        return schema
    kinds = [kind] if isinstance(kind, str) else list(kind)
    made = schema | {"type": [*kinds, *(["null"] if "null" not in kinds else [])]}
    if isinstance(values := schema.get("enum"), list) and None not in values:
        made["enum"] = [*values, None]
    return made


def _without_nulls(call: ToolCall, schema: Mapping[str, Any]) -> ToolCall:
    required = schema.get("required", ())
    kept = {key: value for key, value in call.arguments.items() if value is not None or key in required}
    return call if len(kept) == len(call.arguments) else call.model_copy(update={"arguments": kept})
