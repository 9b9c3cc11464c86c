"""TRL's own trainer over a rollout service, for a Python that has TRL: a model of no worth, two steps, and what it did.

Arguments: URL, key, steps, file for the JSON of what was seen. One method of TRL's is watched; none is changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from woodshed.trainers.client import Client
from woodshed.trainers.trl import RolloutFunc, reward

VOCABULARY, GENERATIONS = 400, 8


def tokenizer() -> PreTrainedTokenizerFast:
    """As many ids as the server has; nothing is ever tokenised with it."""
    words = {f"<{number}>": number for number in range(VOCABULARY)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<0>")),
                                   eos_token="<257>", pad_token="<258>", unk_token="<0>")


def network() -> LlamaForCausalLM:
    """A model of no worth, always the same."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=8192, pad_token_id=258, eos_token_id=257))


def main() -> None:
    url, key, steps, out = sys.argv[1:]
    model = network()
    rollouts = RolloutFunc(Client(url, key), "a-training", agent="loop", endpoint="policy",
                           retry={"retry": [{"max": 0}]})
    trainer = GRPOTrainer(
        model, reward_funcs=reward, rollout_func=rollouts, processing_class=tokenizer(),
        train_dataset=Dataset.from_list([{"prompt": "write-file"}, {"prompt": "copy-file"}]),
        args=GRPOConfig(
            output_dir=str(Path(out).parent / "out"), per_device_train_batch_size=2 * GENERATIONS,
            num_generations=GENERATIONS, max_steps=int(steps), learning_rate=1e-2, use_cpu=True, report_to=[],
            save_strategy="no", logging_steps=1, disable_tqdm=True))
    seen: list[dict[str, Any]] = []
    inner, scored = rollouts.__call__, trainer._generate_and_score_completions

    def watched(inputs: Any) -> Any:
        made = scored(inputs)
        seen[-1]["advantages"] = made["advantages"].tolist()
        return made

    def called(prompts: Any, of: Any) -> Any:
        columns = inner(prompts, of)
        seen.append({"prompts": list(prompts), **columns})
        return columns

    trainer._generate_and_score_completions = watched
    trainer.rollout_func = called
    before = torch.cat([one.detach().flatten().clone() for one in model.parameters()])
    trainer.train()
    rollouts.settle()
    after = torch.cat([one.detach().flatten() for one in model.parameters()])
    Path(out).write_text(json.dumps({"steps": seen, "moved": float((after - before).abs().max()),
                                     "left_out": rollouts.left_out}))


if __name__ == "__main__":
    main()
