"""How many tokens a request may have, told by its length. Pure: no tokenizer stands here, and no server is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence

from woodshed.interfaces import ModelRequest, ToolSpec
from woodshed.model import Message

CHARACTERS_EACH = 3.5
"""Of a token, before anything is known: English and code have 3 to 4 in the vocabularies of open models."""


def estimate(request: ModelRequest, known: tuple[ModelRequest, int] | None) -> int:
    """Tokens of ``request``; where an earlier one is ``known`` with its tokens as the server counted them, by those."""
    each = CHARACTERS_EACH
    if known is not None and known[1] > 0:
        each = max(0.1, _length(known[0]) / known[1])
    return max(1, round(_length(request) / each))


def weigh(messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
    """Characters of what a server would render."""
    said = sum(len(message.content) + len(message.reasoning) for message in messages)
    called = sum(len(call.name) + len(call.raw if call.raw is not None else json.dumps(call.arguments))
                 for message in messages for call in message.tool_calls)
    offered = sum(len(tool.name) + len(tool.description) + len(json.dumps(dict(tool.parameters))) for tool in tools)
    return said + called + offered


def _length(request: ModelRequest) -> int:
    return weigh(request.messages, request.tools) + 8 * len(request.messages)
