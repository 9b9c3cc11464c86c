"""Tokens without a tokenizer: a text is weighed by its pieces; the server's own counts say what a weight is worth."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

from woodshed.interfaces import ToolSpec
from woodshed.model import ToolCall

_PIECE = re.compile(r"[A-Za-z]{1,6}|[ \t]{2,}|\n+|[^\sA-Za-z]")
"""What byte-pair vocabularies make about one token of. Digits and signs count singly, as in the Qwen family's: others
join up to three, so that the weight of numbers errs on the safe side."""
_FRAME = 6  # what a chat template writes around one message
_LEAST, _MOST = 0.4, 3.0


def weigh(text: str) -> int:
    """The weight of ``text``: near its count of tokens for prose and code, above it for numbers."""
    return len(_PIECE.findall(text))


def weigh_message(content: str, calls: Sequence[ToolCall] = (), reasoning: str = "") -> int:
    """The weight of a message with what stands around it."""
    return _FRAME + weigh(content) + weigh(reasoning) + sum(
        _FRAME + weigh(call.name) + weigh(json.dumps(call.arguments, ensure_ascii=False)) for call in calls)


def weigh_tools(tools: Sequence[ToolSpec]) -> int:
    """The weight of the tools on offer."""
    return sum(_FRAME + weigh(json.dumps([tool.name, tool.description, dict(tool.parameters)])) for tool in tools)


class Gauge:
    """Turns weights into tokens, by what the server last reported."""

    def __init__(self) -> None:
        self._worth = 1.0

    def learn(self, weight: int, tokens: int) -> None:
        """The server counted ``tokens`` for what weighs ``weight``. A count of 0 says nothing."""
        if weight and tokens:
            self._worth = min(_MOST, max(_LEAST, tokens / weight))

    def tokens(self, weight: int) -> int:
        """About how many tokens ``weight`` is."""
        return math.ceil(weight * self._worth)

    def weight(self, tokens: int) -> int:
        """The weight that is about ``tokens``."""
        return int(tokens / self._worth)
