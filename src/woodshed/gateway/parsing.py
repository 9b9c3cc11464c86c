"""JSON of programs and servers, read and written fast: an answer with token ids is long, and every call waits."""

from __future__ import annotations

import json
from typing import Any

import orjson


def loads(payload: bytes) -> Any:
    """What ``payload`` says. Raises ValueError and RecursionError, as the standard library's reader.

    That reader is asked for what the fast one refuses: halves of surrogate pairs, NaN.
    """
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return json.loads(payload)


def dumps(data: Any) -> bytes:
    """``data`` as it is sent, a number that is none as null. Raises ValueError for halves of surrogate pairs.

    The standard library's writer is asked for what the fast one refuses: very long numbers.
    """
    try:
        return orjson.dumps(data)
    except orjson.JSONEncodeError:
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
