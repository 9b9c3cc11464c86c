"""vLLM: ids stand beside the answer once they are asked for.

Source: vLLM 0.32 ``entrypoints/openai``; run against its CPU build. ``token_ids`` include the end-of-turn token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.gateway.capture.server import ids, logprobs, part
from woodshed.model.tokens import Tokens

FIELDS: Mapping[str, Any] = {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}
NEUTRAL: Mapping[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
"""All of it is said: what is not, is taken from the model's ``generation_config.json``, which may cut and penalise."""


def read(answer: Mapping[str, Any]) -> Tokens:
    """What the answer tells."""
    versions = part(answer, "weight_versions")
    if not isinstance(versions, list) or not versions:
        versions = [version for version in (part(answer, "weight_version"),) if version is not None]
    told = [str(version) for version in (*versions[:1], *versions[-1:])]  # in which it began, and ended
    return Tokens(
        prompt=ids(part(answer, "prompt_token_ids")), completion=ids(part(answer, "choices", 0, "token_ids")),
        logprobs=logprobs(answer), policy_version=told[0] if told else None,
        policy_after=told[-1] if told and told[0] != told[-1] else None,
    )
