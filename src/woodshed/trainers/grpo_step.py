"""One step of GRPO upon token rows: group-relative advantages, the clipped loss, an update. For small models.

The definitions are those of TRL 1.16 (``GRPOTrainer``) with its defaults: ``scale_rewards="group"``,
``loss_type="dapo"``, ``importance_sampling_level="token"``, ``beta=0``. With r the rewards of a group's rollouts that
have one, advantages are

    A = (r - mean(r)) / (std(r) + 1e-4)            std by n - 1

and 0 for a rollout without a reward, or alone in its group. With ratio = exp(logprob now - logprob when it was sampled)

    loss = - sum over sampled ids of min(ratio · A, clip(ratio, 1 - low, 1 + high) · A) / number of sampled ids

where an id of the context is none. What is invalid is in neither sum: it moves nothing, and no baseline. An ``entropy``
bonus, which TRL does not have, is off unless it is asked for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from woodshed.model.rollout import Rollout

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

_STEADY = 1e-4
"""Added to the deviation by TRL."""


@dataclass(frozen=True, slots=True)
class Clip:
    """How far the ratio may move an update: below 1 by ``low``, above it by ``high`` (TRL: 0.2 both; DAPO: 0.28)."""

    low: float = 0.2
    high: float = 0.2


@dataclass(frozen=True, slots=True)
class Sample:
    """A token row to learn from; ``mask`` is 1 where an id was sampled, and ``logprobs`` are those of then."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float

    @property
    def sampled(self) -> int:
        """How many of its ids were sampled, and can be learnt from: the first id of a row has nothing before it."""
        return sum(self.mask[1:])


@dataclass(frozen=True, slots=True)
class Stepped:
    """What an update was made of: samples and sampled ids that moved something; ``clipped`` is a share of these ids.

    ``ratio`` is the mean of all ratios in the first pass: far from 1, the sampler and the trainer disagree.
    """

    samples: int
    ids: int
    loss: float
    clipped: float
    ratio: float


def advantages(rewards: Sequence[float | None]) -> list[float]:
    """The advantage of each rollout of a group, 0.0 for one without a reward."""
    known = [one for one in rewards if one is not None]
    if len(known) < 2:
        return [0.0] * len(rewards)
    mean = math.fsum(known) / len(known)
    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in known) / (len(known) - 1))
    return [0.0 if one is None else (one - mean) / (deviation + _STEADY) for one in rewards]


def samples(groups: Iterable[Sequence[Rollout]]) -> list[Sample]:
    """The rows of whole groups, each with its rollout's advantage.

    A rollout that cannot be trained on counts in its group's baseline where it has a reward, and gives no rows; one
    without a reward does neither. Raises ValueError for a row without logprobs.
    """
    made = []
    for group in groups:
        rewards = [one.reward if one.valid else None for one in group]
        for rollout, advantage in zip(group, advantages(rewards), strict=True):
            for row in rollout.rows:
                if row.logprobs is None:
                    raise ValueError(f"{rollout.rollout} has no logprobs (capture level {rollout.capture_level.value})")
                made.append(Sample(row.token_ids, row.loss_mask, row.logprobs, advantage))
    return made


def loss(now: Tensor, then: Tensor, advantage: Tensor, clip: Clip, count: int) -> tuple[Tensor, Tensor]:
    """The loss of sampled ids, and which of them are clipped; all of one length. ``count`` is the ids of the batch."""
    import torch

    ratio = torch.exp(now - then)
    bound = ratio.clamp(1 - clip.low, 1 + clip.high)
    gained = torch.minimum(ratio * advantage, bound * advantage)
    clipped = ((ratio < 1 - clip.low) & (advantage < 0)) | ((ratio > 1 + clip.high) & (advantage > 0))
    return -gained.sum() / max(1, count), clipped


def update(
    logprobs: Callable[[Tensor, Tensor], Tensor], optimizer: Optimizer, given: Sequence[Sample], *, clip: Clip,
    passes: int = 1, size: int = 32, norm: float = 1.0, entropy: float = 0.0, seed: int = 0,
) -> Stepped:
    """Learn from ``given`` in ``passes`` over all of it, ``size`` rows at a time, the gradient cut to ``norm``.

    ``logprobs`` is the model: of ids (B, T) and a mask (B, T) of the places whose *next* id was sampled it gives the
    logprobs of all ids there, (N, V), in order of rows. Samples of advantage 0 count in the loss's denominator, as in
    TRL, and are not computed. Nothing is changed where no sample has another advantage. ``entropy`` is the weight of a
    bonus for the mean entropy at the sampled ids: it keeps a small model from settling on the first thing that works.
    """
    import torch

    live = [one for one in given if one.advantage and one.sampled]
    if not live:
        return Stepped(0, 0, 0.0, 0.0, 1.0)
    share = sum(one.sampled for one in given) / sum(one.sampled for one in live)
    order, seen, cut, lost, ratios = random.Random(seed), 0, 0, 0.0, 0.0  # noqa: S311 (repeatable)
    for number in range(passes):
        for part in _parts(live, size, order):
            ids, where, then, advantage = _padded(part)
            all_ = logprobs(ids[:, :-1], where)
            now = all_.gather(1, ids[:, 1:][where][:, None])[:, 0]
            cost, clipped = loss(now, then, advantage, clip, round(len(now) * share))
            if entropy:
                cost = cost + entropy * (all_.exp() * all_).sum(-1).mean()
            optimizer.zero_grad()
            cost.backward()
            torch.nn.utils.clip_grad_norm_((one for group in optimizer.param_groups for one in group["params"]), norm)
            optimizer.step()
            seen, cut, lost = seen + len(now), cut + int(clipped.sum()), lost + float(cost.detach()) * len(now)
            ratios += float(torch.exp(now.detach() - then).sum()) if not number else 0.0
    return Stepped(len(live), seen // passes, lost / seen, cut / seen, ratios * passes / seen)


def _parts(given: Sequence[Sample], size: int, order: random.Random) -> Iterator[Sequence[Sample]]:
    mixed = order.sample(given, len(given))
    return (mixed[at : at + size] for at in range(0, len(mixed), size))


def _padded(part: Sequence[Sample]) -> tuple[Any, Any, Any, Any]:
    """Ids (B, T); where (B, T - 1) the next id was sampled; the logprobs and advantages of those ids, in order."""
    import torch

    longest = max(len(one.ids) for one in part)
    ids = torch.zeros(len(part), longest, dtype=torch.long)
    where = torch.zeros(len(part), longest - 1, dtype=torch.bool)
    then, advantage = [], []
    for number, one in enumerate(part):
        ids[number, : len(one.ids)] = torch.tensor(one.ids)
        where[number, : len(one.ids) - 1] = torch.tensor(one.mask[1:], dtype=torch.bool)
        chosen = [value for value, mask in zip(one.logprobs[1:], one.mask[1:], strict=True) if mask]
        then += chosen
        advantage += [one.advantage] * len(chosen)
    return ids, where, torch.tensor(then), torch.tensor(advantage)
