"""JSON of programs and servers, read fast: an answer with token ids is long, and every call waits for it."""

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
