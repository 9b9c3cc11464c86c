"""Adapters as llama.cpp reads them: the names, the shapes and the numbers that its own converter gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from woodshed.trainers import lora

gguf = pytest.importorskip("gguf", reason="needs the package gguf: pip install gguf")
numpy = pytest.importorskip("numpy", reason="needs numpy, which gguf brings")

Q, DOWN = "base_model.model.model.layers.3.self_attn.q_proj", "base_model.model.model.layers.11.mlp.down_proj"


def test_an_adapter_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Two tensors a layer, under llama.cpp's names, with the same numbers; its table says what it is."""
    dice = numpy.random.default_rng(7)
    pairs = {Q: (dice.normal(size=(4, 32)).astype("float32"), dice.normal(size=(16, 4)).astype("float32")),
             DOWN: (dice.normal(size=(4, 64)).astype("float32"), dice.normal(size=(32, 4)).astype("float32"))}
    lora.write(tmp_path / "a.gguf", pairs, architecture="qwen2", alpha=16.0)
    read = gguf.GGUFReader(tmp_path / "a.gguf")
    assert {name: field.contents() for name, field in read.fields.items() if not name.startswith("GGUF.")} == {
        "general.architecture": "qwen2", "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 16.0}
    found = {one.name: one for one in read.tensors}
    for module, name in ((Q, "blk.3.attn_q.weight"), (DOWN, "blk.11.ffn_down.weight")):
        for end, matrix in zip(("lora_a", "lora_b"), pairs[module], strict=True):
            tensor = found.pop(f"{name}.{end}")
            assert (tensor.data == matrix).all()
            assert tuple(tensor.shape) == matrix.shape[::-1], "GGUF tells the innermost dimension first"
    assert not found
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


@pytest.mark.parametrize("module", ["model.embed_tokens", "model.layers.0.mlp.experts", "layers.x.mlp.up_proj", "head"])
def test_a_layer_without_a_name_there_is_refused(module: str) -> None:
    """Nothing is written under a name that the server would not know."""
    with pytest.raises(ValueError, match="no linear layer"):
        lora.tensor(module)


def test_what_cannot_be_an_adapter_is_refused(tmp_path: Path) -> None:
    """An architecture whose rows GGUF orders otherwise, no layers, and matrices that do not fit: no file is left."""
    one = numpy.zeros((4, 32), "float32")
    for architecture, pairs in (("llama", {Q: (one, one.T)}), ("qwen2", {}), ("qwen2", {Q: (one, one)})):
        with pytest.raises(ValueError, match=r"adapter|no \(rank"):
            lora.write(tmp_path / "a.gguf", pairs, architecture=architecture, alpha=16.0)
    assert not (tmp_path / "a.gguf").exists()
