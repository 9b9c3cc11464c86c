"""A rollout in the words of each trainer, against golden samples; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from woodshed.errors import Cause
from woodshed.model.rollout import CallRecord, CaptureLevel, Rollout
from woodshed.trainers import projections
from woodshed.trainers.stitch import stitch


def call(number: int, prompt: tuple[int, ...], completion: tuple[int, ...], **more: Any) -> CallRecord:
    given: dict[str, Any] = {
        "rollout": "a-1", "attempt": "a", "execution": 1, "call": f"m{number:05d}", "model": "m",
        "policy_version": "v2", "prompt_token_ids": prompt, "completion_token_ids": completion,
        "logprobs": (-0.5,) * len(completion),
        "loss_mask": (1,) * len(completion), "finish_reason": "stop", "capture_level": CaptureLevel.LOGPROBS,
        "messages": ({"role": "user", "content": "hi"},), "answer": {"role": "assistant", "content": "yo"}}
    return CallRecord(**{**given, **more})


CALLS = [call(1, (1, 2), (3,)), call(2, (1, 2, 3, 4), (5,)), call(3, (9,), (8,), finish_reason="length")]


def rollout(**more: Any) -> Rollout:
    given: dict[str, Any] = {
        "rollout": "a-1", "attempt": "a", "execution": 1, "task": "t", "agent": "loop", "index": 3, "reward": 1.0,
        "valid": True, "trainable": True, "capture_level": CaptureLevel.LOGPROBS, "rows": stitch(CALLS).rows}
    return Rollout(**{**given, **more})


BROKEN_BY_US: dict[str, Any] = {"reward": None, "valid": False, "cause": Cause.ENVIRONMENT, "trainable": False,
                                "untrainable": ("it has no reward (environment)",), "rows": ()}


def test_trl_gets_lists_of_rows() -> None:
    """Ids behind the first prompt are the completion, the tool's among them masked."""
    assert projections.trl([rollout()]) == {
        "prompt_ids": [[1, 2], [9]], "completion_ids": [[3, 4, 5], [8]], "logprobs": [[-0.5, 0.0, -0.5], [-0.5]],
        "env_mask": [[1, 0, 1], [1]], "reward": [1.0, 1.0], "rollout": ["a-1", "a-1"]}


def test_verl_gets_an_output_for_each_row() -> None:
    """The mask is that of the response alone."""
    told = {"reward_score": 1.0, "metrics": {}}
    extra = {"rollout": "a-1", "task": "t"}
    assert projections.verl(rollout()) == [
        {"prompt_ids": [1, 2], "response_ids": [3, 4, 5], "response_mask": [1, 0, 1],
         "response_logprobs": [-0.5, 0.0, -0.5], "num_turns": 4, **told,
         "extra_fields": {**extra, "row": 0, "policy_versions": ["v2", "v2"]}},
        {"prompt_ids": [9], "response_ids": [8], "response_mask": [1], "response_logprobs": [-0.5], "num_turns": 2,
         **told, "extra_fields": {**extra, "row": 1, "policy_versions": ["v2"]}}]


def test_skyrl_gets_the_reward_at_the_last_step() -> None:
    """Rows are steps of one trajectory."""
    assert projections.skyrl([rollout()]) == {
        "prompt_token_ids": [[1, 2], [9]], "response_ids": [[3, 4, 5], [8]], "rewards": [0.0, 1.0],
        "loss_masks": [[1, 0, 1], [1]], "stop_reasons": ["stop", "length"],
        "rollout_logprobs": [[-0.5, 0.0, -0.5], [-0.5]],
        "trajectory_ids": [{"instance_id": "t", "repetition_id": 3}] * 2, "is_last_step": [False, True]}


def test_prime_rl_gets_flat_samples() -> None:
    """An advantage stands only where the model spoke."""
    assert projections.prime_rl(rollout(), 0.5, 0.7) == [
        {"token_ids": [1, 2, 3, 4, 5], "mask": [False, False, True, False, True],
         "logprobs": [0.0, 0.0, -0.5, 0.0, -0.5], "temperatures": [0.7] * 5, "advantages": [0.0, 0.0, 0.5, 0.0, 0.5]},
        {"token_ids": [9, 8], "mask": [False, True], "logprobs": [0.0, -0.5], "temperatures": [0.7] * 2,
         "advantages": [0.0, 0.5]}]


IDS = [([1, 2], [3]), ([1, 2, 3, 4], [5]), ([9], [8])]
ITEMS = [{
    "type": "message", "role": "assistant", "id": f"m{number:05d}",
    "content": [{"type": "output_text", "text": "yo", "annotations": []}],
    "prompt_token_ids": prompt, "generation_token_ids": completion, "generation_log_probs": [-0.5],
} for number, (prompt, completion) in enumerate(IDS, 1)]


def test_nemo_gets_items_and_a_mask() -> None:
    """What must not move anything says so, and why; what is whole is not masked."""
    assert projections.nemo(rollout(), CALLS) == {
        "reward": 1.0, "mask_sample": False, "failure_kind": None, "failure_reason": None,
        "response": {"output": ITEMS}}
    assert projections.nemo(rollout(**BROKEN_BY_US), CALLS) == {
        "reward": 0.0, "mask_sample": True, "failure_kind": "environment",
        "failure_reason": "it has no reward (environment)", "response": {"output": ITEMS}}


def test_openenv_gets_a_turn_for_each_call() -> None:
    """The mask covers prompt and completion, and the reward stands apart."""
    turns = [{
        "node_id": f"m{number:05d}", "prompt_token_ids": prompt, "completion_token_ids": completion,
        "per_token_logps": [-0.5], "loss_mask": [0] * len(prompt) + [1],
        "request": {"messages": [{"role": "user", "content": "hi"}], "tools": []},
        "response": {"role": "assistant", "content": "yo"},
        "metadata": {"parent": None, "policy_version": "v2", "finish_reason": reason,
                     "capture_level": "tokens+logprobs"},
    } for number, (prompt, completion), reason in zip((1, 2, 3), IDS, ("stop", "stop", "length"), strict=True)]
    for one, reward in ((rollout(), 1.0), (rollout(**BROKEN_BY_US), None)):
        assert projections.openenv(one, CALLS) == {"reward": reward, "trace": {"schema_version": 1, "turns": turns}}


@pytest.mark.parametrize("make", [
    lambda one: projections.trl([one]), projections.verl, lambda one: projections.skyrl([one]),
    lambda one: projections.prime_rl(one, 0.0, 1.0),
], ids=["trl", "verl", "skyrl", "prime-rl"])
def test_no_reward_is_made_up(make: Callable[[Rollout], Any]) -> None:
    """Where a trainer has no word for a missing reward or a lost call, the rollout is refused with its reason."""
    with pytest.raises(ValueError, match="no reward"):
        make(rollout(**BROKEN_BY_US))
    with pytest.raises(ValueError, match="call m00001 is lost"):
        make(rollout(trainable=False, untrainable=("call m00001 is lost",), rows=()))


def test_without_logprobs_no_ratio_is_made_up() -> None:
    """Trainers that need behaviour logprobs get none of a rollout that has only ids."""
    rows = stitch([call(1, (1,), (2,), logprobs=None)]).rows
    ids_only = rollout(rows=rows, capture_level=CaptureLevel.TOKENS)
    with pytest.raises(ValueError, match="no logprobs"):
        projections.trl([ids_only])
    assert projections.verl(ids_only)[0]["response_logprobs"] is None
