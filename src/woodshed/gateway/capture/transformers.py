"""transformers serve: it lists ``logprobs`` as unsupported, ignores it with a warning, and tells no ids.

Source: transformers 5.24 ``cli/serve``. So its level is text: for evaluation and SFT, and not for a policy gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.gateway.capture import plain

FIELDS: Mapping[str, Any] = {}
NEUTRAL: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0}

read = plain.read
