"""The warm start: a network that writes well-formed calls, from exported conversations, by supervised learning."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tiny.network import Network
from tiny.template import prompt
from tiny.text import Vocabulary

Row = Mapping[str, Any]
"""One row of ``woodshed export --format sft``: prompt, completion, tools, attempt."""


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation as ids; ``mask`` is 1 where an id is the model's own, and is learnt."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]


def vocabulary(rows: Iterable[Row], *, size: int) -> Vocabulary:
    """The vocabulary of what stands in the rows, tools' names included."""
    texts = []
    for row in rows:
        texts += [json.dumps([one["function"]["name"] for one in row["tools"] or ()])]
        for message in (*row["prompt"], *row["completion"]):
            texts += [message["content"]] if message["role"] != "system" else []
            texts += [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls") or ()]
    return Vocabulary.of(texts, size=size)


def talks(rows: Iterable[Row], words: Vocabulary) -> list[Talk]:
    """The conversations of the rows. Answers of one attempt that go on from each other are one conversation."""
    made: dict[str, list[tuple[list[int], int]]] = {}
    for row in rows:
        before = prompt(words, row["prompt"], row["tools"] or ())
        whole = prompt(words, [*row["prompt"], *row["completion"]], row["tools"] or ())[:-1]
        made.setdefault(str(row["attempt"]), []).append((whole, len(before)))
    found = []
    for answers in made.values():
        ids = max((whole for whole, _ in answers), key=len)
        mask = [0] * len(ids)
        for whole, start in answers:
            if ids[: len(whole)] == whole:
                mask[start : len(whole)] = [1] * (len(whole) - start)
        found.append(Talk(tuple(ids), tuple(mask)))
    return found


def learn(
    network: Network, given: Sequence[Talk], *, steps: int, size: int = 16, rate: float = 5e-3, seed: int = 0
) -> list[float]:
    """The loss of each of ``steps``; the rate rises for a twentieth of them and falls along a cosine."""
    dice = random.Random(seed)  # noqa: S311 (repeatable, nothing secret)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    losses = []
    given = [one for one in given if len(one.ids) <= network.shape.context]
    for step in range(steps):
        for group in optimizer.param_groups:
            risen = min(1.0, (step + 1) / max(1, steps // 20))
            group["lr"] = rate * risen * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)
        part = dice.sample(given, min(size, len(given)))
        longest = max(len(one.ids) for one in part)
        ids = torch.tensor([[*one.ids, *[0] * (longest - len(one.ids))] for one in part])
        where = torch.tensor([[*one.mask[1:], *[0] * (longest - len(one.ids))] for one in part], dtype=torch.bool)
        loss = -network(ids[:, :-1], where).gather(1, ids[:, 1:][where][:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
