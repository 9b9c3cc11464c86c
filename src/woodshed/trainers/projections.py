"""Rollouts in the words of each trainer. Pure; none of them is imported, and none of what they need is made up.

Field names as of November 2026: TRL 1.16 (``rollout_func``), verl 0.9 (``AgentLoopOutput``), SkyRL (step-wise
``GeneratorOutput``), prime-rl (flat samples), NeMo Gym 0.7 (output items), OpenEnv 0.10 (``TrainingTrace`` 1).
A rollout without a reward, or one that is not trainable, is refused where a trainer has no word for that: it would be
taken for a 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from woodshed.model.rollout import CallRecord, Rollout, TokenRow
from woodshed.trainers.chat import answered, asked

_STOPS = {"length": "length", "tool_calls": "stop", "stop": "stop"}


def learnable(rollout: Rollout) -> float:
    """The reward of a rollout that may be learnt from. Raises ValueError, with the reason, for any other."""
    if rollout.reward is None:
        raise ValueError(f"{rollout.rollout} has no reward ({rollout.cause or 'unknown'})")
    if not rollout.trainable:
        raise ValueError(f"{rollout.rollout} is not trainable: {'; '.join(rollout.untrainable)}")
    return rollout.reward


def trl(rollouts: Sequence[Rollout]) -> dict[str, list[Any]]:
    """What ``rollout_func`` gives: a row each, ``env_mask`` 1 where the model spoke; ``reward`` for reward functions.

    A rollout of several rows gives several, all with its reward. Raises ValueError where one has no logprobs.
    """
    made: dict[str, list[Any]] = {key: [] for key in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward",
                                                      "rollout")}
    for rollout in rollouts:
        reward = learnable(rollout)
        for row in rollout.rows:
            at = row.prompt_length
            values = (row.token_ids[:at], row.token_ids[at:], _logprobs(rollout, row)[at:], row.loss_mask[at:])
            for key, value in zip(made, (*map(list, values), reward, rollout.rollout), strict=True):
                made[key].append(value)
    return made


def verl(rollout: Rollout) -> list[dict[str, Any]]:
    """An ``AgentLoopOutput`` for each row."""
    reward = learnable(rollout)
    return [{
        "prompt_ids": list(row.token_ids[: row.prompt_length]), "response_ids": list(row.token_ids[row.prompt_length:]),
        "response_mask": list(row.loss_mask[row.prompt_length:]),
        "response_logprobs": None if row.logprobs is None else list(row.logprobs[row.prompt_length:]),
        "reward_score": reward, "num_turns": 2 * len(row.calls), "metrics": {},
        "extra_fields": {"rollout": rollout.rollout, "task": rollout.task, "row": row.row,
                         "policy_versions": list(row.policy_versions)},
    } for row in rollout.rows]


def skyrl(rollouts: Sequence[Rollout]) -> dict[str, list[Any]]:
    """A step-wise ``GeneratorOutput``: a row is a step, and the last row of a rollout carries its reward."""
    made: dict[str, list[Any]] = {key: [] for key in (
        "prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_logprobs",
        "trajectory_ids", "is_last_step")}
    for rollout in rollouts:
        reward = learnable(rollout)
        for row in rollout.rows:
            at, last = row.prompt_length, row is rollout.rows[-1]
            values = (list(row.token_ids[:at]), list(row.token_ids[at:]), reward if last else 0.0,
                      list(row.loss_mask[at:]), _STOPS.get(row.finish_reason, row.finish_reason),
                      None if row.logprobs is None else list(row.logprobs[at:]),
                      {"instance_id": rollout.task, "repetition_id": rollout.index}, last)
            for key, value in zip(made, values, strict=True):
                made[key].append(value)
    return made


def prime_rl(rollout: Rollout, advantage: float, temperature: float) -> list[dict[str, Any]]:
    """Flat samples, with what each id was sampled at. Raises ValueError where a row has no logprobs."""
    learnable(rollout)
    return [{
        "token_ids": list(row.token_ids), "mask": [bool(one) for one in row.loss_mask],
        "logprobs": list(_logprobs(rollout, row)), "temperatures": [temperature] * len(row.token_ids),
        "advantages": [advantage if one else 0.0 for one in row.loss_mask],
    } for row in rollout.rows]


def nemo(rollout: Rollout, calls: Sequence[CallRecord]) -> dict[str, Any]:
    """A verified response: an output item each call, and ``mask_sample`` for what must not move anything.

    NeMo has a word for that, so no rollout is refused; its ``reward`` of one that is masked is 0.0 and never read.
    """
    masked = rollout.reward is None or not rollout.trainable
    return {
        "reward": 0.0 if rollout.reward is None else rollout.reward, "mask_sample": masked,
        "failure_kind": None if rollout.cause is None or rollout.valid else rollout.cause.value,
        "failure_reason": "; ".join(rollout.untrainable) or None,
        "response": {"output": [{
            "type": "message", "role": "assistant", "id": call.call,
            "content": [{"type": "output_text", "text": str(call.answer.get("content") or ""), "annotations": []}],
            "prompt_token_ids": _list(call.prompt_token_ids), "generation_token_ids": _list(call.completion_token_ids),
            "generation_log_probs": _list(call.logprobs),
        } for call in calls]},
    }


def openenv(rollout: Rollout, calls: Sequence[CallRecord]) -> dict[str, Any]:
    """``trace`` is a ``TrainingTrace`` 1, a turn each call; the ``reward`` stands apart, and may be None."""
    if rollout.reward is not None:
        learnable(rollout)
    return {"reward": rollout.reward, "trace": {"schema_version": 1, "turns": [{
        "node_id": call.call, "prompt_token_ids": _list(call.prompt_token_ids),
        "completion_token_ids": _list(call.completion_token_ids), "per_token_logps": _list(call.logprobs),
        "loss_mask": [0] * len(call.prompt_token_ids or ()) + list(call.loss_mask or ()),
        "request": {"messages": asked(call), "tools": list(call.tools)}, "response": answered(call),
        "metadata": {"parent": call.parent, "policy_version": call.policy_version,
                     "finish_reason": call.finish_reason, "capture_level": call.capture_level.value},
    } for call in calls]}}


def _logprobs(rollout: Rollout, row: TokenRow) -> tuple[float, ...]:
    if row.logprobs is None:
        raise ValueError(f"{rollout.rollout} has no logprobs (capture level {rollout.capture_level.value})")
    return row.logprobs


def _list(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)
