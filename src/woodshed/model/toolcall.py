"""Reading a call's arguments as a model wrote them. Pure: text in, a ToolCall out, errors as values."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from woodshed.model.trajectory import ToolCall

_SHOWN = 40


def written_call(call: str, name: str, text: str) -> ToolCall:
    """The call that ``text`` (a JSON object of arguments) makes; ``raw`` and ``error`` are set where it is none.

    Line breaks inside strings are accepted: models write them. NaN and infinity are not: no record may hold them.
    """
    arguments, error = read_object(text) if text.strip() else ({}, None)
    if arguments is None:
        return ToolCall(id=call, name=name, raw=printable(text), error=error)
    return ToolCall(id=call, name=name, arguments=arguments)


def read_object(text: str) -> tuple[dict[str, Any] | None, str | None]:
    """The JSON object in ``text``, or None and what is wrong with it, with the place."""
    try:
        value = _READER.decode(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")  # what cannot be stored is no call
    except json.JSONDecodeError as error:
        before, after = text[max(0, error.pos - _SHOWN):error.pos], text[error.pos:error.pos + _SHOWN]
        return None, (f"not valid JSON: {error.msg} at line {error.lineno} column {error.colno}, "
                      f"here: {printable(before)} >>> {printable(after)}")
    except UnicodeEncodeError:
        return None, "not valid JSON: it holds half of a surrogate pair; write the character itself"
    except (ValueError, RecursionError) as error:
        return None, f"not valid JSON: {error}"
    if not isinstance(value, dict):
        return None, f"a JSON {_KIND.get(type(value), 'value')} where an object {{...}} is needed"
    return value, None


def printable(text: str) -> str:
    """``text`` as it can be encoded: lone surrogates become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


_KIND: dict[type, str] = {list: "array", str: "string", int: "number", float: "number", bool: "boolean",
                          type(None): "null"}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


_READER = json.JSONDecoder(strict=False, parse_constant=_refuse)
"""Made once: a long conversation brings its calls again in every request."""
