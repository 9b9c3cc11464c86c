"""TRL's own trainer over environments of a service, for a Python that has TRL: one step, and what it did.

Arguments: URL, key, file for the JSON of what was seen. The model is of no worth; what it samples is given in its
place, as ids of TRL's own template, so that tools are really called. Nothing else of TRL is changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from woodshed.trainers.client import Client
from woodshed.trainers.trl_environment import ASK, factory

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>"]
WORK = "echo 'hello world' > hello.txt"


def tokenizer() -> PreTrainedTokenizerFast:
    """One id for each byte, and TRL's own template of Qwen 2.5."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={sign: number for number, sign in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                    additional_special_tokens=SPECIAL)
    found.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    return found


def main() -> None:
    url, key, out = sys.argv[1:]
    torch.manual_seed(0)
    words = tokenizer()
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=16384, pad_token_id=words.pad_token_id,
        eos_token_id=words.eos_token_id))
    trainer = GRPOTrainer(
        model, environment_factory=factory(Client(url, key)), processing_class=words,
        train_dataset=Dataset.from_list([{"prompt": ASK, "task": "write-file"}] * 4),
        args=GRPOConfig(
            output_dir=str(Path(out).parent / "out"), per_device_train_batch_size=4, num_generations=4, max_steps=1,
            learning_rate=1e-2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
            max_completion_length=2048, max_tool_calling_iterations=4))
    turns = iter(range(100))

    def generated(prompt_ids: list[list[int]], *_: Any, **__: Any) -> Any:
        """Two of four do the work in their first turn; then all say that they are done."""
        first = next(turns) == 0
        said = []
        for number, _prompt in enumerate(prompt_ids):
            command = WORK if number % 2 else "true"
            call = json.dumps({"name": "bash", "arguments": {"command": command}})
            text = f"<tool_call>\n{call}\n</tool_call><|im_end|>" if first else "done<|im_end|>"
            said.append(words(text, add_special_tokens=False)["input_ids"])
        return said, None

    trainer._generate_single_turn = generated
    seen: dict[str, Any] = {"rewards": []}
    rewarded, scored = trainer._calculate_rewards, trainer._generate_and_score_completions

    def watched(*given: Any, **more: Any) -> Any:
        found = rewarded(*given, **more)
        seen["rewards"] = found.flatten().tolist()
        return found

    def made(inputs: Any) -> Any:
        found = scored(inputs)
        seen["advantages"] = found["advantages"].tolist()
        seen["tool_mask"] = found["tool_mask"].sum(1).tolist() if "tool_mask" in found else None
        seen["told"] = words.batch_decode(found["completion_ids"])[1]
        return found

    trainer._calculate_rewards, trainer._generate_and_score_completions = watched, made
    trainer.train()
    Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
