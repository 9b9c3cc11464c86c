"""A random model of a few thousand weights as a GGUF file that llama.cpp serves: bytes, and ChatML's two marks.

It writes ASCII and ends its turns. One number of each hidden state is the same, whatever went before; by it all other
ids are unlikely: of an answer that ends within a character llama.cpp tells fewer logprobs than ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
from gguf import GGUFWriter, TokenType

WIDTH, LAYERS, HEADS, CONTEXT = 32, 2, 2, 1024
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
UNLIKELY = -20.0
MARKS = ["<unk>", "<s>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = len(MARKS) + 256


def write(path: Path, seed: int = 0) -> None:
    """The file. Its weights are drawn from ``seed``."""
    chance = numpy.random.default_rng(seed)

    def drawn(*shape: int, first: float | None = None) -> Any:
        weights = chance.normal(0, 0.5, shape).astype(numpy.float32)
        if first is not None:
            weights[:, 0] = first
        return weights

    def adding() -> Any:  # to all numbers of the state but the first
        weights = drawn(WIDTH, WIDTH)
        weights[0] = 0
        return weights

    def told() -> Any:
        weights = drawn(VOCABULARY, WIDTH, first=0.0)
        weights[[0, 1, 2, *range(len(MARKS) + 128, VOCABULARY)], 0] = UNLIKELY
        return weights

    file = GGUFWriter(path, "llama")
    file.add_name("random")
    file.add_context_length(CONTEXT)
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(WIDTH)
    file.add_head_count(HEADS)
    file.add_head_count_kv(HEADS)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_dimension_count(WIDTH // HEADS)
    file.add_vocab_size(VOCABULARY)
    file.add_tokenizer_model("llama")
    file.add_token_list([*MARKS, *(f"<0x{byte:02X}>" for byte in range(256))])
    file.add_token_scores([0.0] * VOCABULARY)
    file.add_token_types([TokenType.UNKNOWN, *[TokenType.CONTROL] * 3, *[TokenType.BYTE] * 256])
    file.add_bos_token_id(1)
    file.add_eos_token_id(3)
    file.add_unk_token_id(0)
    file.add_add_bos_token(False)
    file.add_add_space_prefix(False)
    file.add_chat_template(TEMPLATE)
    file.add_tensor("token_embd.weight", drawn(VOCABULARY, WIDTH, first=10.0))
    file.add_tensor("output_norm.weight", numpy.ones(WIDTH, numpy.float32))
    file.add_tensor("output.weight", told())
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            file.add_tensor(f"blk.{layer}.{name}.weight", numpy.ones(WIDTH, numpy.float32))
        for name in ("attn_q", "attn_k", "attn_v"):
            file.add_tensor(f"blk.{layer}.{name}.weight", drawn(WIDTH, WIDTH))
        file.add_tensor(f"blk.{layer}.attn_output.weight", adding())
        for name in ("ffn_gate", "ffn_up"):
            file.add_tensor(f"blk.{layer}.{name}.weight", drawn(WIDTH, WIDTH))
        file.add_tensor(f"blk.{layer}.ffn_down.weight", adding())
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
