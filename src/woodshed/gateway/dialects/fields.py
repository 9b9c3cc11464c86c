"""Fields of a program's request, read without trusting them: what all dialects have in common. Pure.

``where`` is the place in the body, for the refusal. A conversation here is text and tool calls: several parts of text
in one message are joined by line breaks, as vLLM and llama.cpp join them for templates that take one text.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from woodshed.gateway.dialects import Refused
from woodshed.gateway.parsing import dumps
from woodshed.interfaces import ToolSpec
from woodshed.model import printable

ASKED_BYTES = 65_536
"""Of everything that a request says besides its conversation. A schema for the answer is the largest of it."""
MOST_TOOLS, MOST_STOPS = 512, 16
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """``value``, which must be an object."""
    if not isinstance(value, Mapping):
        raise Refused(f"{where} must be an object", where)
    return value


def listed(value: Any, where: str, *, most: int | None = None) -> list[Any]:
    """``value``, which must be a list; nothing is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list) or (most is not None and len(value) > most):
        raise Refused(f"{where} must be a list" + (f" of at most {most}" if most is not None else ""), where)
    return value


def text(value: Any, where: str) -> str:
    """``value``, which must be a text."""
    if not isinstance(value, str):
        raise Refused(f"{where} must be a text", where)
    return printable(value)


def spoken(content: Any, where: str, kinds: Mapping[str, str]) -> str:
    """A message's text. ``kinds`` are the types of parts that are served, with the field that holds their text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return printable(content)
    if not isinstance(content, list):
        raise Refused(f"{where} must be a text or a list of parts", where)
    return "\n".join(part(one, f"{where}[{index}]", kinds) for index, one in enumerate(content))


def part(one: Any, where: str, kinds: Mapping[str, str]) -> str:
    """The text of one part."""
    kind = one.get("type") if isinstance(one, Mapping) else None
    held = one.get(kinds[kind]) if isinstance(kind, str) and kind in kinds else None
    if not isinstance(held, str):
        named = f" ({kind[:64]} is not)" if isinstance(kind, str) and kind not in kinds else ""
        raise Refused(f"{where}: only parts of type {' or '.join(kinds)} are served{printable(named)}", where)
    return printable(held)


def function(given: Mapping[str, Any], where: str, *, schema: str) -> ToolSpec:
    """A tool on offer; the field ``schema`` holds its parameters."""
    name, about, parameters = given.get("name"), given.get("description"), given.get(schema)
    if not isinstance(name, str) or not isinstance(about, str | None):
        raise Refused(f"{where} needs a name, and a description that is text", where)
    if not isinstance(parameters, Mapping | None):
        raise Refused(f"{where}.{schema} must be a schema", where)
    return ToolSpec(printable(name), printable(about or ""), sound(parameters or _NO_PARAMETERS, where),
                    strict=given.get("strict") is True)


def stops(value: Any, where: str) -> tuple[str, ...]:
    """Words at which the answer ends."""
    words = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(words, list) or len(words) > MOST_STOPS or not all(isinstance(word, str) for word in words):
        raise Refused(f"{where} must be a text or a short list of texts", where)
    return tuple(printable(word) for word in words if word)


def most(body: Mapping[str, Any], *names: str) -> int | None:
    """How many tokens an answer may have, by the first of ``names`` that says it."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
            raise Refused(f"{name} must be a positive number", name)
        return value
    return None


def model(body: Mapping[str, Any]) -> str:
    """The name that was asked for."""
    name = body.get("model")
    return printable(name)[:200] if isinstance(name, str) else ""


def others(body: Mapping[str, Any], apart: Collection[str]) -> dict[str, Any]:
    """All that a body says but what was read ``apart``, as a record may hold it."""
    return sound({name: value for name, value in body.items() if name not in apart}, "the request")


def sound(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``given`` as a record may hold it. Raises Refused where it is too large, or holds what no JSON may."""
    try:
        written = json.dumps(given, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError):  # UnicodeEncodeError is one
        raise Refused(f"{where} holds what is no JSON", where) from None
    if len(written) > ASKED_BYTES:
        raise Refused(f"{where} is longer than {ASKED_BYTES} bytes", where)
    return dict(given)


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One server-sent event."""
    return (b"" if name is None else b"event: " + name.encode() + b"\n") + b"data: " + dumps(data) + b"\n\n"
