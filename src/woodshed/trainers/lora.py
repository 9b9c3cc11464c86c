"""A LoRA adapter as a GGUF file, which llama.cpp serves over the weights that it was trained upon.

Format: llama.cpp's ``convert_lora_to_gguf.py`` and ``src/llama-adapter.cpp``. For each linear layer two tensors, of the
layer's own name with ``.lora_a`` (rank, in) and ``.lora_b`` (out, rank); the server adds ``B · A · alpha / rank``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

ARCHITECTURES = ("qwen2", "qwen3")
"""Those whose layers GGUF keeps as they are. (Of llama's it changes the order of rows, and an adapter's with them.)"""
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(self_attn|mlp)\.(\w+)$")
_NAMES = {
    ("self_attn", "q_proj"): "attn_q", ("self_attn", "k_proj"): "attn_k", ("self_attn", "v_proj"): "attn_v",
    ("self_attn", "o_proj"): "attn_output", ("mlp", "gate_proj"): "ffn_gate", ("mlp", "up_proj"): "ffn_up",
    ("mlp", "down_proj"): "ffn_down",
}


def tensor(module: str) -> str:
    """The tensor of llama.cpp that is the linear layer ``module`` of transformers. Raises ValueError for another."""
    found = _LAYER.search(module)
    name = _NAMES.get((found[2], found[3])) if found else None
    if found is None or name is None:
        raise ValueError(f"{module} is no linear layer that an adapter can be written for")
    return f"blk.{found[1]}.{name}.weight"


def write(
    path: Path, pairs: Mapping[str, tuple[NDArray[float32], NDArray[float32]]], *, architecture: str, alpha: float
) -> None:
    """The adapter of ``pairs`` stands in ``path``, in one piece: by module, A (rank, in) and B (out, rank), 32 bits.

    Raises ValueError for an unknown architecture, no pairs, or matrices that do not fit; needs the package ``gguf``.
    """
    from gguf import GGUFWriter

    if architecture not in ARCHITECTURES:
        raise ValueError(f"adapters of {architecture} cannot be written; known: {', '.join(ARCHITECTURES)}")
    if not pairs:
        raise ValueError("an adapter needs at least one layer")
    partial = path.with_name(path.name + ".partial")
    writer = GGUFWriter(str(partial), architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for module, (down, up) in sorted(pairs.items()):
        if down.ndim != 2 or up.ndim != 2 or down.shape[0] != up.shape[1]:
            raise ValueError(f"{module}: A {down.shape} and B {up.shape} are no (rank, in) and (out, rank)")
        for name, matrix in (("lora_a", down), ("lora_b", up)):
            writer.add_tensor(f"{tensor(module)}.{name}", matrix.astype("float32", order="C"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(path)
