"""Raw completions: where servers tell token ids and logprobs of a text that they continued.

Sources: llama.cpp ``tools/server`` (b11434, run with xllamacpp): ``logprobs`` is a number here, the answer is as in
chat completions, and its tokenizer puts before a prompt what its model wants there. vLLM 0.32 ``entrypoints/openai``:
ids of the prompt stand beside those of the answer, and logprobs in the lists of the older shape. Of others nothing is
known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.gateway.capture import SERVERS, llamacpp, plain, vllm
from woodshed.gateway.capture.server import Server, ids, numbers, part
from woodshed.model.tokens import Tokens


def read_vllm(answer: Mapping[str, Any]) -> Tokens:
    """What vLLM's answer tells."""
    found = vllm.read(answer)
    listed = part(answer, "choices", 0, "logprobs", "token_logprobs")
    return Tokens(
        prompt=ids(part(answer, "choices", 0, "prompt_token_ids")), completion=found.completion,
        logprobs=numbers(listed) if isinstance(listed, list) and listed else None, policy_version=found.policy_version,
        policy_after=found.policy_after)


def tokenize(text: str) -> tuple[str, dict[str, Any]]:
    """How llama.cpp is asked for the ids of a prompt, as it makes them of one that is to be continued."""
    path, body = llamacpp.tokenize(text)
    return path, body | {"add_special": True}


SERVERS_RAW: Mapping[str, Server] = {
    "vllm": Server({"return_token_ids": True, "logprobs": 0}, read_vllm, neutral=vllm.NEUTRAL),
    "llama.cpp": Server({"verbose": True, "return_tokens": True, "logprobs": 1}, llamacpp.read, tokenize,
                        llamacpp.tokenized, llamacpp.NEUTRAL),
    **{name: Server(plain.FIELDS, plain.read, neutral=SERVERS[name].neutral) for name in SERVERS
       if name not in ("vllm", "llama.cpp")},
}
"""Servers by name, as :data:`woodshed.gateway.capture.SERVERS`; others are asked as ``plain``."""
