"""Values that stand as plain text between tags: what they are is told by the tool's schema. Pure.

A text for a parameter of type string is that text. For any other type it is JSON, and a text that is no JSON is itself
(so that the complaint about its type can show it). A string for a parameter that may be something else, too, is
written as JSON where it could be mistaken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from woodshed.harness.dialects.cursor import Cursor, Wrong
from woodshed.interfaces import ToolSpec

_PYTHON: Mapping[str, bool | None] = {"True": True, "False": False, "None": None}
_KINDS: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
                              dict: "object", type(None): "null"}
_DEEPEST = 8  # of schemas in schemas


class Types:
    """What the parameters of the tools on offer may be."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            properties = tool.parameters.get("properties")
            self._schemas[tool.name] = properties if isinstance(properties, Mapping) else {}

    def of(self, tool: str, key: str) -> frozenset[str]:
        """Names of JSON types; none where it may be any. A parameter that nobody declared is a string."""
        properties = self._schemas.get(tool, {})
        return _kinds(properties[key]) if key in properties else frozenset({"string"})

    def read(self, tool: str, key: str, text: str) -> Any:
        """The value that ``text`` is."""
        return _read(text, self.of(tool, key))

    def write(self, tool: str, key: str, value: Any) -> str:
        """The text that is read as ``value``, where the schema allows that value."""
        if isinstance(value, str):
            same = _read(value, self.of(tool, key)) == value
            return value if same else json.dumps(value, ensure_ascii=False)
        return json.dumps(value, ensure_ascii=False)


def _read(text: str, kinds: frozenset[str]) -> Any:
    if kinds == {"string"}:
        return text
    word = text.strip()
    if word in _PYTHON:
        return _PYTHON[word]
    cursor = Cursor(text)
    try:
        value = cursor.json()
    except Wrong:
        return text
    if not cursor.blank().over:
        return text
    kind = _KINDS[type(value)]
    fits = not kinds or kind in kinds or (kind == "integer" and "number" in kinds)
    return value if fits or "string" not in kinds else text


def _kinds(schema: Any, depth: int = 0) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return frozenset()
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(str(each) for each in kind)
    options = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(options, list):
        return frozenset()
    found = [_kinds(option, depth + 1) for option in options]
    return frozenset().union(*found) if all(found) else frozenset()
