"""The real llama.cpp over a model of random weights: what is captured of tokens is what the server itself says."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from woodshed.gateway.client import Gateway
from woodshed.gateway.local import KEY_VARIABLE, LocalServer
from woodshed.interfaces import ModelRequest
from woodshed.model import EventKind, Message, Sampling
from woodshed.model.rollout import CaptureLevel

pytestmark = [
    pytest.mark.skipif(
        find_spec("xllamacpp") is None or find_spec("gguf") is None,
        reason="needs a llama.cpp and its file format: pip install xllamacpp gguf (the group 'dev' on x86-64 Linux)"),
    pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="needs a processor with AVX2"),
]
WORDS = ("hi", "Say nothing.", "\u00fc \u4e16 <|im_end|> \n\n")


async def _continued(url: str, prompt: tuple[int, ...], seed: int, most: int) -> tuple[list[int], list[float]]:
    """Ids and logprobs that the server samples itself after these ids, by its own endpoint."""
    asked = {"prompt": list(prompt), "n_predict": most, "seed": seed, "temperature": 1.0, "top_k": 0, "top_p": 1.0,
             "min_p": 0.0, "n_probs": 1, "return_tokens": True, "cache_prompt": False}
    headers = {"Authorization": f"Bearer {os.environ[KEY_VARIABLE]}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.post(
            f"{url.removesuffix('/v1')}/completion", json=asked) as answer:
        told = await answer.json()
    return told["tokens"], [one["logprob"] for one in told["completion_probabilities"]]


async def test_the_real_llamacpp_agrees_with_what_is_captured(tmp_path: Path) -> None:
    """Ids and logprobs of each call are those that /completion gives after the same prompt, seed and sampler.

    The size of the vocabulary is the server's word; with a smaller one that somebody says, the probe finds mere text.
    """
    import randomgguf  # with a library that is not everywhere

    path = tmp_path / "random.gguf"
    randomgguf.write(path)
    events: list[dict[str, Any]] = []

    def emit(kind: EventKind, data: Any) -> None:
        if kind is EventKind.MODEL_RESULT:
            events.append(dict(data))

    server, gateway = LocalServer(str(path), tmp_path, parallel=1, threads=1), Gateway()
    try:
        async with server as url:
            spec = server.spec(Sampling(max_tokens=12)).model_copy(update={"capture": "auto"})
            found = (await gateway.probe(spec))[url]
            assert (found.name, found.found, found.vocabulary) == (  # type: ignore[union-attr]  # no fault
                "llama.cpp", CaptureLevel.LOGPROBS, randomgguf.VOCABULARY)
            for seed, words in enumerate(WORDS):
                heard = await gateway.client(spec, emit, seed=seed).call(
                    ModelRequest([Message(role="user", content=words)]))
                assert not heard.flaws
                assert heard.tokens is not None
                assert heard.tokens.prompt is not None
                ids, logprobs = await _continued(url, heard.tokens.prompt, seed, 12)
                assert heard.tokens.completion == tuple(ids)
                assert heard.tokens.logprobs == pytest.approx(logprobs, abs=1e-3)
            less = spec.model_copy(update={"vocabulary": 100})
            assert (await gateway.probe(less))[url].found is CaptureLevel.TEXT  # type: ignore[union-attr]  # no fault
    finally:
        await gateway.close()
    assert {one["capture_level"] for one in events} == {"tokens+logprobs"}
