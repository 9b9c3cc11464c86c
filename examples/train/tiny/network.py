"""The network: a small transformer that can also point at an id of its context and say it again.

Pointing (pointer-generator networks, See et al. 2017, arXiv:1704.04368) spares so small a model the learning of how to
copy names; that what followed an id before is likely to follow it again, it is given (induction heads, Olsson et al.
2022, arXiv:2209.11895). Its probabilities are one distribution over the vocabulary, and the logprobs are exactly those.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_FLOOR = 1e-9
"""No id has a smaller probability: a logprob is finite whatever the pointer does."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a network. ``context`` is the most ids of a prompt and its completion together."""

    vocabulary: int
    width: int = 128
    layers: int = 3
    heads: int = 4
    context: int = 512

    def to_json(self) -> dict[str, Any]:
        """As it is saved."""
        return asdict(self)


class Past:
    """Keys and values of sequences that go on: one row (a slot) for each."""

    def __init__(self, shape: Shape, slots: int) -> None:
        size = (shape.layers, slots, shape.heads, shape.context, shape.width // shape.heads)
        self.keys, self.values = torch.zeros(size), torch.zeros(size)
        self.marks = torch.zeros(slots, shape.context, shape.width)
        self.ids = torch.zeros(slots, shape.context, dtype=torch.long)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a batch of further ids stands: ``slots`` (B), positions (B, C), and which (B, C, T) each of them sees."""

    past: Past
    slots: Tensor
    at: Tensor
    sees: Tensor


class Network(nn.Module):
    """Ids in, logprobs of the next ids out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocabulary, shape.width)
        self.place = nn.Embedding(shape.context, shape.width)
        self.before = nn.Linear(shape.width, shape.width, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.seek = nn.Linear(shape.width, shape.width)
        self.mark = nn.Linear(shape.width, shape.width)
        self.gate = nn.Linear(shape.width, 1)
        self.again = nn.Parameter(torch.tensor([3.0, 3.0]))

    def forward(self, ids: Tensor, where: Tensor | None = None) -> Tensor:
        """Logprobs of the id after each of ``ids`` (B, T) that ``where`` (B, T) chooses, by default after all.

        Those of N chosen places are (N, V), in order of rows. Elsewhere nothing is computed of the vocabulary's size.
        """
        hidden = self._entered(ids, functional.pad(ids[:, :-1], (1, 0)), torch.arange(ids.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        hidden = self.norm(hidden)
        chosen = torch.ones_like(ids, dtype=torch.bool) if where is None else where
        row, column = chosen.nonzero(as_tuple=True)
        found = (self.seek(hidden) @ self.mark(hidden).transpose(1, 2))[row, column]
        return self._logprobs(hidden[row, column], found, ids[row], column)

    @torch.no_grad()
    def further(self, ids: Tensor, at: Tensor, lengths: Tensor, slots: Tensor, past: Past) -> Tensor:
        """Logprobs (B, V) of what follows the last of ``ids`` (B, C), which stand in ``slots`` from ``at`` (B) on.

        Of each row ``lengths`` (B) ids count; what is behind them is filled in by whatever comes later.
        """
        positions = (at[:, None] + torch.arange(ids.shape[1])).clamp(max=self.shape.context - 1)
        reach = int((at + lengths).max())
        sees = torch.arange(reach) <= positions[:, :, None]
        place = _Place(past, slots, positions, sees)
        past.ids[slots[:, None], positions] = ids
        before = past.ids[slots[:, None], (positions - 1).clamp(min=0)] * (positions > 0)
        hidden = self._entered(ids, before, positions)
        for layer, block in enumerate(self.blocks):
            hidden = block(hidden, place, layer)
        hidden = self.norm(hidden)
        past.marks[slots[:, None], positions] = self.mark(hidden)
        rows = torch.arange(len(ids))
        last = hidden[rows, lengths - 1]
        found = (past.marks[slots, :reach] @ self.seek(last)[:, :, None])[:, :, 0]
        return self._logprobs(last, found, past.ids[slots, :reach], at + lengths - 1)

    def _entered(self, ids: Tensor, before: Tensor, positions: Tensor) -> Tensor:
        """Each id knows the one before it from the first: whoever repeats a name has to find what follows what."""
        entered: Tensor = self.embed(ids) + self.before(self.embed(before)) + self.place(positions)
        return entered

    def _logprobs(self, hidden: Tensor, found: Tensor, ids: Tensor, here: Tensor) -> Tensor:
        """Of N places, each ``here`` (N) in its ids (N, T): ``hidden`` (N, W), and how each id is ``found`` (N, T)."""
        spoken = functional.softmax(hidden @ self.embed.weight.T, -1)
        sees = torch.arange(ids.shape[1]) <= here[:, None]
        one, two = functional.pad(ids, (1, 0))[:, :-1], functional.pad(ids, (2, 0))[:, :-2]
        current, before = ids.gather(1, here[:, None]), ids.gather(1, (here[:, None] - 1).clamp(min=0))
        same = (one == current).float()
        found = found / math.sqrt(self.shape.width) + self.again[0] * same + self.again[1] * same * (two == before)
        pointed = functional.softmax(found.masked_fill(~sees, -torch.inf), -1)
        share = torch.sigmoid(self.gate(hidden))
        mixed = ((1 - share) * spoken).scatter_add(1, ids, share * pointed)
        return torch.log((1 - _FLOOR * mixed.shape[-1]) * mixed + _FLOOR)


class _Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.first, self.second = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.ask, self.tell = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)
        self.think = nn.Sequential(nn.Linear(shape.width, 4 * shape.width), nn.GELU(),
                                   nn.Linear(4 * shape.width, shape.width))

    def forward(self, hidden: Tensor, place: _Place | None = None, layer: int = 0) -> Tensor:
        rows, length, width = hidden.shape
        asked = self.ask(self.first(hidden)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = asked.permute(2, 0, 3, 1, 4)
        if place is None:
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            past, reach = place.past, place.sees.shape[-1]
            past.keys[layer, place.slots[:, None], :, place.at] = key.transpose(1, 2)
            past.values[layer, place.slots[:, None], :, place.at] = value.transpose(1, 2)
            seen = functional.scaled_dot_product_attention(
                query, past.keys[layer, place.slots, :, :reach], past.values[layer, place.slots, :, :reach],
                attn_mask=place.sees[:, None])
        hidden = hidden + self.tell(seen.transpose(1, 2).reshape(rows, length, width))
        added: Tensor = hidden + self.think(self.second(hidden))
        return added
