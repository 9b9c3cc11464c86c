"""TRL's own trainer, for a Python that has TRL, on groups that were exported: advantages and updates that they make.

Arguments: the JSONL of ``woodshed export --format grpo``, file for the JSON of what was seen. Each update is one step
of plain gradient descent from the same weights, so that updates can be added.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from trltrain import network, tokenizer
from woodshed.model.rollout import Rollout
from woodshed.trainers.rows import rollout_of
from woodshed.trainers.trl import columns, reward

Group = list[Rollout]


def update(groups: Sequence[Group], score: Callable[..., list[float | None]]) -> tuple[dict[str, float], Any, int]:
    """Advantages by rollout, what one step changes of the weights, and how many ids it learnt from."""
    model, size = network(), len(groups[0])
    flat = [one for group in groups for one in group]
    before = torch.cat([one.detach().flatten().clone() for one in model.parameters()])
    trainer = GRPOTrainer(
        model, reward_funcs=score, rollout_func=lambda prompts, of: columns(flat, 257),
        processing_class=tokenizer(), train_dataset=Dataset.from_list([{"prompt": group[0].task} for group in groups]),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=len(flat), num_generations=size, max_steps=1,
            shuffle_dataset=False, learning_rate=1.0, lr_scheduler_type="constant", optim="sgd", max_grad_norm=0.0,
            bf16=False, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True))
    advantages: dict[str, float] = {}
    scored = trainer._generate_and_score_completions

    def watched(inputs: Any) -> Any:
        made = scored(inputs)
        advantages.update(zip((one.rollout for one in flat), made["advantages"].tolist(), strict=True))
        return made

    trainer._generate_and_score_completions = watched
    trainer.train()
    after = torch.cat([one.detach().flatten() for one in model.parameters()])
    return advantages, after - before, sum(sum(mask) for mask in columns(flat, 257)["env_mask"])


def zeros(reward: Sequence[float | None], **_more: Any) -> list[float | None]:
    """As others do: what broke is taken for a failure."""
    return [one or 0.0 for one in reward]


def main() -> None:
    rows, out = sys.argv[1:]
    told: dict[str, Group] = defaultdict(list)
    for line in filter(None, Path(rows).read_bytes().split(b"\n")):
        row = json.loads(line)
        told[row["group"]].append(rollout_of(row))
    groups = list(told.values())
    with_faults, delta, ids = update(groups, reward)
    survivors, together = dict[str, float](), torch.zeros_like(delta)
    by_size: dict[int, list[Group]] = defaultdict(list)
    for group in groups:
        alive = [one for one in group if one.valid]
        by_size[len(alive)].append(alive)
    for size, alike in sorted(by_size.items()):
        if size < 2:  # no group to TRL, and nothing to compare with
            survivors |= {one.rollout: 0.0 for group in alike for one in group}
            continue
        advantages, part, learnt = update(alike, reward)
        survivors |= advantages
        together += part * (learnt / ids)
    _, false, _ = update(groups, zeros)
    norm = delta.norm()
    Path(out).write_text(json.dumps({
        "attempts": sum(map(len, groups)), "sizes": dict(Counter(len([one for one in group if one.valid])
                                                                 for group in groups)),
        "broken": dict(Counter(one.cause for group in groups for one in group if not one.valid)),
        "advantages": with_faults, "survivors": survivors, "update": float(norm),
        "apart": float((delta - together).norm() / norm), "apart_with_zeros": float((delta - false).norm() / norm)}))


if __name__ == "__main__":
    main()
