"""Whether a llama.cpp with an adapter and transformers with the same one are one model: logprobs of the same ids.

Arguments: GGUF file, folder for its dequantised copy, scratch folder. Prints JSON: mean differences by who has the
adapter. For a Python that has the extra ``train``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "train"))

from demo.policy import Policy, dequantised

from woodshed.gateway.local import KEY_VARIABLE, LocalServer

PROMPT = [151644, 872, 198, 7985, 264, 12528, 3210, 429, 11508, 3542, 13, 151645, 198, 151644, 77091, 198]
STRENGTH = 0.02
"""Of B, which is 0 at first: strong enough that the adapter is seen in every logprob."""


async def sampled(weights: Path, home: Path, adapter: Path) -> tuple[list[int], list[float]]:
    """Ids that the server drew after the prompt, and its logprobs."""
    async with (LocalServer(str(weights), home, parallel=1, lora=adapter) as url,
                aiohttp.ClientSession(headers={"Authorization": f"Bearer {os.environ[KEY_VARIABLE]}"}) as session,
                session.post(url.removesuffix("/v1") + "/completion", json={
                    "prompt": PROMPT, "n_predict": 32, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
                    "n_probs": 1, "return_tokens": True, "seed": 3}) as answer):
        told: dict[str, Any] = await answer.json()
    return told["tokens"], [one["logprob"] for one in told["completion_probabilities"]]


def mean(policy: Policy, ids: list[int], told: list[float]) -> float:
    """The mean difference of logprobs at the sampled ids."""
    whole = torch.tensor([[*PROMPT, *ids]])
    where = torch.zeros(1, whole.shape[1] - 1, dtype=torch.bool)
    where[0, len(PROMPT) - 1 :] = True
    with torch.no_grad():
        ours = policy.logprobs(whole[:, :-1], where).gather(1, whole[:, 1:][where][:, None])[:, 0]
    return float((ours - torch.tensor(told)).abs().mean())


def main() -> None:
    weights, base, scratch = map(Path, sys.argv[1:])
    policy = Policy(dequantised(weights, base), seed=0, rate=0.0, dtype=torch.float32)
    before = {name: value.detach().clone() for name, value in policy.learnt().items()}
    with torch.no_grad():
        for name, value in policy.learnt().items():
            if ".lora_B." in name:
                value.normal_(std=STRENGTH)
    policy.write(scratch / "adapter.gguf")
    ids, told = asyncio.run(sampled(weights, scratch, scratch / "adapter.gguf"))
    found = {"both": mean(policy, ids, told)}
    with torch.no_grad():
        for name, value in policy.learnt().items():
            value.copy_(before[name])
    found["server_alone"] = mean(policy, ids, told)
    print(json.dumps(found | {"ids": len(ids)}))


if __name__ == "__main__":
    main()
