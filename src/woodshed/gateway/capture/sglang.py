"""SGLang: ids stand in the choice, and exact triples of logprob, id and text in its ``meta_info``.

Source: SGLang 0.5.23 ``entrypoints/openai``. It rejects these fields with ``stream``; the gateway never streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.gateway.capture.server import ids, logprobs, numbers, part
from woodshed.model.tokens import Tokens

FIELDS: Mapping[str, Any] = {
    "return_prompt_token_ids": True, "return_token_ids": True, "return_meta_info": True, "logprobs": True,
}
NEUTRAL: Mapping[str, Any] = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
"""All of it is said, for what is not is taken from the model's ``generation_config.json``. It refuses a top_k of 0."""


def read(answer: Mapping[str, Any]) -> Tokens:
    """What the answer tells; ``meta_info`` counts where the choice is silent."""
    choice = part(answer, "choices", 0)
    triples = part(choice, "meta_info", "output_token_logprobs")
    triples = triples if isinstance(triples, list) and triples else []
    completion = ids(part(choice, "response_token_ids")) or ids([part(one, 1) for one in triples] or None)
    version = part(choice, "meta_info", "weight_version")
    return Tokens(
        prompt=ids(part(choice, "prompt_token_ids")), completion=completion,
        logprobs=numbers([part(one, 0) for one in triples]) if triples else logprobs(answer),
        policy_version=None if version is None else str(version),
    )
