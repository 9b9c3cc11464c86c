"""GRPO: whole groups of rollouts, with token rows where they were captured and a baseline of the valid ones. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from woodshed.model.rollout import Rollout
from woodshed.trainers.chat import Chat
from woodshed.trainers.rollouts import baseline


def rows(run: str, group: Sequence[tuple[Rollout, list[Chat]]]) -> list[dict[str, Any]]:
    """One row for each rollout of a complete group, with the prompt that it began with.

    ``advantage`` is the reward over the ``baseline``, which is the mean of valid rollouts with a reward; both are None
    where there is none. An invalid rollout stands here with reward None and its cause, and moves nothing.
    """
    base = baseline([rollout for rollout, _ in group])
    made = []
    for rollout, prompt in group:
        told = rollout.to_json()
        made.append({
            "group": f"{run}/{rollout.task}/{rollout.agent}", "group_size": len(group), "group_valid": base.valid,
            "baseline": base.mean, "deviation": base.deviation, "advantage": base.advantage(rollout.reward),
            "prompt": prompt, **{key: value for key, value in told.items() if key != "version"},
        })
    return made
