"""A server of chat completions that tells no ids. Its logprobs name tokens by text, which no trainer can use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.model.tokens import Tokens

FIELDS: Mapping[str, Any] = {}


def read(answer: Mapping[str, Any]) -> Tokens:
    """Nothing of tokens."""
    return Tokens()
