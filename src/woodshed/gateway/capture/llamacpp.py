"""llama.cpp: sampled ids stand beside their logprobs; of the prompt only the text is told.

Source: llama.cpp ``tools/server`` (b11434), run with xllamacpp. ``top_logprobs`` of 0 leaves the logprobs out. The
ids of the prompt are asked for once more, by ``/tokenize``, and held against ``usage``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.gateway.capture.server import ids, logprobs, part
from woodshed.model.tokens import Tokens

FIELDS: Mapping[str, Any] = {"verbose": True, "return_tokens": True, "logprobs": True, "top_logprobs": 1}
NEUTRAL: Mapping[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Its own defaults (0.8, 40, 0.95, 0.05) cut the distribution."""


def read(answer: Mapping[str, Any]) -> Tokens:
    """What the answer tells. Ids of the logprobs are taken where there are no others."""
    content = part(answer, "choices", 0, "logprobs", "content")
    beside = ids([part(one, "id") for one in content]) if isinstance(content, list) and content else None
    told = ids(part(answer, "__verbose", "tokens"))
    text = part(answer, "__verbose", "prompt")
    return Tokens(completion=told or beside, logprobs=logprobs(answer),
                  prompt_text=text if isinstance(text, str) else None)


def tokenize(text: str) -> tuple[str, dict[str, Any]]:
    """How the ids of a rendered prompt are asked for. Its special tokens stand in the text, none is to be added."""
    return "/tokenize", {"content": text, "add_special": False, "parse_special": True}


def tokenized(answer: Any) -> tuple[int, ...] | None:
    """The ids that the server gave."""
    return ids(part(answer, "tokens"))
