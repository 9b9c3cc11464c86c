"""The GRPO step: what TRL defines, and what moves nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.errors import Cause
from woodshed.model.rollout import CaptureLevel, Rollout, TokenRow
from woodshed.trainers.grpo_step import Clip, Sample, advantages, loss, samples, update


def made(number: int, reward: float | None, *, trainable: bool = True) -> Rollout:
    """A rollout of one row of six ids, of which three were sampled."""
    valid, trainable = reward is not None, trainable and reward is not None
    dice = random.Random(number)
    row = TokenRow(row=0, calls=("m00001",), prompt_length=2, token_ids=tuple(dice.randrange(9) for _ in range(6)),
                   loss_mask=(0, 0, 1, 1, 0, 1), logprobs=(0.0, 0.0, -1.5, -2.0, 0.0, -1.0), finish_reason="stop")
    return Rollout(rollout=f"r{number}", attempt=f"a{number}", execution=1, task="t", agent="a", index=number,
                   reward=reward, valid=valid, cause=None if valid else Cause.ENVIRONMENT, trainable=trainable,
                   untrainable=() if trainable else ("it is broken",), capture_level=CaptureLevel.LOGPROBS,
                   rows=(row,) if trainable else ())


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12))
def test_advantages_are_those_of_valid_rollouts_alone(rewards: list[float | None]) -> None:
    """Whatever is without a reward has none, and the others have what they have in a group without it."""
    known = [one for one in rewards if one is not None]
    found = advantages(rewards)
    assert [one for one, reward in zip(found, rewards, strict=True) if reward is not None] == advantages(known)
    assert all(one == 0.0 for one, reward in zip(found, rewards, strict=True) if reward is None)
    assert math.fsum(found) == pytest.approx(0.0, abs=1e-6)


def test_an_advantage_is_the_reward_over_the_mean_by_the_deviation() -> None:
    """As TRL has it: the deviation by n - 1, and 1e-4 beside it. A group of one has none."""
    deviation = math.sqrt(((1 - 0.25) ** 2 + 3 * 0.25**2) / 3)
    assert advantages([1.0, 0.0, 0.0, None, 0.0]) == pytest.approx(
        [0.75 / (deviation + 1e-4), *[-0.25 / (deviation + 1e-4)] * 2, 0.0, -0.25 / (deviation + 1e-4)])
    assert advantages([1.0, None]) == [0.0, 0.0]
    assert advantages([0.3] * 4) == pytest.approx([0.0] * 4)


def test_rows_of_broken_rollouts_are_left_out_and_rewards_of_untrainable_ones_count() -> None:
    """A rollout that has a reward but no rows still is in the baseline; one without a reward is in nothing."""
    group = [made(0, 1.0), made(1, 0.0), made(2, None), made(3, 0.0, trainable=False)]
    found = samples([group])
    assert [one.advantage for one in found] == pytest.approx(advantages([1.0, 0.0, 0.0])[:2])
    assert [one.ids for one in found] == [group[0].rows[0].token_ids, group[1].rows[0].token_ids]
    told = group[0].rows[0].model_copy(update={"logprobs": None})
    with pytest.raises(ValueError, match="no logprobs"):
        samples([[group[0].model_copy(update={"rows": (told,)}), group[1]]])


TORCH = "needs torch: pip install --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu"


def model(torch: Any) -> Any:
    """A table of logits by the id before."""
    torch.manual_seed(0)
    return torch.nn.Embedding(9, 9)


def learnt(torch: Any, given: Sequence[Sample], *, passes: int = 1) -> tuple[Any, Any]:
    """The table after an update of plain gradient descent, and what was told of it."""
    table = model(torch)
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)

    def logprobs(ids: Any, where: Any) -> Any:
        return torch.log_softmax(table(ids), -1)[where]

    stepped = update(logprobs, optimizer, given, clip=Clip(), passes=passes, norm=1e9)
    return table.weight.detach(), stepped


def test_the_update_is_the_gradient_of_trls_loss() -> None:
    """Written out for each id as TRL 1.16 has it (loss_type dapo): the same loss, and the step along its gradient."""
    torch = pytest.importorskip("torch", reason=TORCH)
    given = samples([[made(number, reward) for number, reward in enumerate((1.0, 0.0, 0.5, 0.5))]])
    table = model(torch)
    before = table.weight.detach().clone()
    terms, count = [], 0
    for one in given:
        for place in range(1, len(one.ids)):
            if one.mask[place]:
                now = torch.log_softmax(table.weight[one.ids[place - 1]], -1)[one.ids[place]]
                ratio = torch.exp(now - one.logprobs[place])
                terms.append(-torch.minimum(ratio * one.advantage, ratio.clamp(0.8, 1.2) * one.advantage))
                count += 1
    whole = sum(terms) / count
    whole.backward()
    weights, stepped = learnt(torch, given)
    assert count == 12
    assert stepped.loss == pytest.approx(float(whole.detach()), abs=1e-6)
    assert torch.allclose(weights, before - table.weight.grad, atol=1e-6)
    assert stepped.samples == 2  # two rollouts have the group's mean reward: they count in the denominator alone


def test_what_is_masked_or_invalid_moves_nothing() -> None:
    """The update among broken rollouts is the one without them; rewards alike and context ids change no weight."""
    torch = pytest.importorskip("torch", reason=TORCH)
    whole = [made(0, 1.0), made(1, 0.0), made(2, 0.0)]
    alone, _ = learnt(torch, samples([whole]))
    among, _ = learnt(torch, samples([[made(7, None), whole[0], made(8, None), *whole[1:]]]))
    assert torch.equal(alone, among)
    assert not torch.equal(alone, model(torch).weight)
    for rewards in ((1.0, 1.0), (0.0, 0.0), (None, 1.0), (None, None)):
        still, stepped = learnt(torch, samples([[made(number, one) for number, one in enumerate(rewards)]]))
        assert torch.equal(still, model(torch).weight)
        assert stepped.samples == 0
    hidden = Sample((1, 2, 3, 4), (0, 0, 0, 0), (0.0,) * 4, 1.0)
    still, _ = learnt(torch, [hidden])
    assert torch.equal(still, model(torch).weight)
    context = Sample((5, 6, 1, 7), (0, 0, 1, 0), (0.0, 0.0, -2.0, 0.0), 1.0)
    moved, _ = learnt(torch, [context])
    rows = (moved != model(torch).weight).any(1).nonzero()[:, 0].tolist()
    assert rows == [6]  # what stands before the one sampled id


def test_a_ratio_beyond_the_clip_stops_moving() -> None:
    """Further along the sign of its advantage an id gains nothing; back from there it still learns."""
    torch = pytest.importorskip("torch", reason=TORCH)
    for now, advantage, moves in ((-0.5, 1.0, False), (-0.5, -1.0, True), (-1.5, -1.0, False), (-1.5, 1.0, True)):
        logprob = torch.tensor([now], requires_grad=True)
        cost, clipped = loss(logprob, torch.tensor([-1.0]), torch.tensor([advantage]), Clip(0.2, 0.2), 1)
        cost.backward()
        assert bool(logprob.grad.abs().sum() > 0) is moves
        assert bool(clipped) is not moves
