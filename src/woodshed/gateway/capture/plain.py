"""A server of chat completions that tells no ids. Its logprobs name tokens by text, which no trainer can use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.model.tokens import Tokens

FIELDS: Mapping[str, Any] = {}
NEUTRAL: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0}
"""What every server of the protocol takes."""


def read(answer: Mapping[str, Any]) -> Tokens:
    """Nothing of tokens."""
    return Tokens()
