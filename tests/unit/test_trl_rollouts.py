"""RolloutFunc against the rollout service: what TRL is handed, and what a training that is begun again gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servekit import KEY, end, talking
from woodshed.errors import UsageError
from woodshed.services.home import Home, opened
from woodshed.trainers.client import Client
from woodshed.trainers.trl import RolloutFunc, reward, task

TASKS = ["first-steps/write-file", "first-steps/fix-line"]


@dataclass
class Training:
    """What RolloutFunc reads of a trainer."""

    step: int = 0
    model: Any = field(default_factory=lambda: SimpleNamespace(training=True))
    processing_class: Any = field(default_factory=lambda: SimpleNamespace(eos_token_id=7, pad_token_id=8))

    @property
    def state(self) -> Any:
        return SimpleNamespace(global_step=self.step)


@dataclass
class Ground:
    home: Home
    client: Client

    async def batch(self, rollouts: RolloutFunc, prompts: list[Any], training: Training) -> dict[str, list[Any]]:
        """What TRL is handed, with attempts that end as they come: 1.0, 0.0, broken, 1.0, …"""
        asked = asyncio.create_task(asyncio.to_thread(rollouts, prompts, training))
        while not asked.done():
            for run in self.home.store.runs():
                still = [one.id for one in self.home.store.attempts(run.id) if one.outcome is None]
                end(self.home, still, *[(1.0, 0.0, None)[place % 3] for place in range(len(still))])
            await asyncio.sleep(0.02)
        return await asked


@asynccontextmanager
async def ground(path: Path) -> AsyncIterator[Ground]:
    with opened(path) as home:
        async with talking(home) as talks:
            yield Ground(home, Client(talks.url, KEY))


async def test_each_prompt_has_one_completion_of_its_own_task(new_home: Callable[[], Path]) -> None:
    """In the order of the prompts, whatever the order of groups; what cannot be learnt from is masked, not zero."""
    async with ground(new_home()) as it:
        rollouts = RolloutFunc(it.client, "t", agent="oracle", capture=False)
        talk = [{"role": "user", "content": TASKS[1]}]
        made = await it.batch(rollouts, [TASKS[0], talk, TASKS[0], talk, TASKS[0]], Training())
    assert made["reward"] == [1.0, 1.0, 0.0, 0.0, None]
    assert reward(**made) == made["reward"]
    assert len(set(made["rollout"])) == 5
    assert made["cause"][-1] is not None
    assert made["env_mask"] == [[0]] * 5  # none of them was captured
    assert made["completion_ids"] == made["prompt_ids"] == [[7]] * 5


async def test_a_step_begun_again_gets_the_same_rollouts_until_they_were_learnt_from(
    new_home: Callable[[], Path],
) -> None:
    """A training that dies in a step is handed the same ones; after the next step was asked for, new ones."""
    async with ground(new_home()) as it:
        first = RolloutFunc(it.client, "t", agent="oracle", capture=False)
        once = await it.batch(first, TASKS, Training())
        resumed = RolloutFunc(it.client, "t", agent="oracle", capture=False)
        assert await it.batch(resumed, TASKS, Training()) == once
        later = await it.batch(resumed, TASKS, Training(step=1))  # acknowledges what came before
        assert not set(later["rollout"]) & set(once["rollout"])
        again = RolloutFunc(it.client, "t", agent="oracle", capture=False)
        anew = await it.batch(again, TASKS, Training())
        assert not set(anew["rollout"]) & {*once["rollout"], *later["rollout"]}
        other = RolloutFunc(it.client, "another", agent="oracle", capture=False)
        assert not set((await it.batch(other, TASKS, Training()))["rollout"]) & set(anew["rollout"])


async def test_a_folder_of_tasks_is_no_prompt(new_home: Callable[[], Path]) -> None:
    """A prompt that names several tasks, or none, is refused by name before anything is learnt."""
    async with ground(new_home()) as it:
        rollouts = RolloutFunc(it.client, "t", agent="oracle", capture=False)
        with pytest.raises(UsageError, match="'first-steps' is 10 tasks"):
            await asyncio.to_thread(rollouts, ["first-steps"], Training())
    with pytest.raises(UsageError, match="names no task"):
        task([{"role": "user", "content": " "}])
