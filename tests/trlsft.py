"""TRL's own SFT trainer over an exported data set, for a Python that has TRL: a model of no worth, and its losses.

Arguments: folder of the export, steps, file for the JSON of what was seen.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from datasets import load_dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for one in messages %}[{{ one.role }}]{{ one.content or '' }}"
    "{% for call in one.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<end>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}")


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte an id, and a plain template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<pad>")
    made.chat_template = _TEMPLATE
    return made


def main() -> None:
    folder, steps, out = sys.argv[1:]
    words = tokenizer()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=8192, pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id))
    trainer = SFTTrainer(
        model, train_dataset=load_dataset(folder, split="train"), processing_class=words,
        args=SFTConfig(output_dir=str(Path(out).parent / "out"), per_device_train_batch_size=4, max_steps=int(steps),
                       learning_rate=1e-2, use_cpu=True, report_to=[], save_strategy="no", logging_steps=1,
                       max_length=4096, disable_tqdm=True, seed=0))
    batch = next(iter(trainer.get_train_dataloader()))
    learnt = [[id_ for id_ in row if id_ != -100] for row in batch["labels"].tolist()]
    trainer.train()
    Path(out).write_text(json.dumps({
        "losses": [one["loss"] for one in trainer.state.log_history if "loss" in one],
        "learnt": [words.decode(row) for row in learnt], "given": [words.decode(row) for row in batch["input_ids"]]}))


if __name__ == "__main__":
    main()
