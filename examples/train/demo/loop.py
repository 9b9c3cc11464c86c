"""The loop: held-out tasks before, rounds of attempts and updates, held-out tasks after. What is done stays done.

Each round's weights are served by a llama.cpp of their own, with the adapter over the base, as a policy version of
their own. After each step of the loop its state stands on disk; begun again, it goes on there.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

import torch

from demo.policy import Policy
from demo.trials import Trials
from woodshed.errors import UsageError
from woodshed.measure.curriculum import Curriculum, History
from woodshed.model import Attempt, Task
from woodshed.model.rollout import Rollout
from woodshed.services import curriculum, runs
from woodshed.services.gathering import Gatherer
from woodshed.services.home import Home
from woodshed.services.measured import publish, stamp
from woodshed.trainers.grpo_step import Clip, Stepped, samples, update
from woodshed.trainers.secrets import Masker

T = TypeVar("T")
_THREAD = ThreadPoolExecutor(1, "policy")
"""All of torch's work, of all seeds: each thread that ever did some keeps gigabytes in an arena of the C library."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything. ``seconds`` bounds the rounds; those that another process made count.

    ``precision`` is that of the base weights in the update; the adapter has 32 bits. ``rows`` go through the model at a
    time, and decide how much memory it takes.
    """

    seed: int = 0
    tasks: int = 180
    heldout: int = 90
    unseen: int = 45
    rounds: int = 12
    groups: int = 10
    size: int = 8
    rate: float = 1e-4
    rows: int = 8
    passes: int = 1
    slots: int = 4
    seconds: float = 2000.0
    precision: str = "float32"


@dataclass
class Learning:
    """One seed. ``home`` holds its attempts and its state; ``base`` is dequantised from the GGUF file ``weights``."""

    home: Home
    plan: Plan
    weights: Path
    base: Path
    told: Callable[[str], None]
    state: dict[str, Any] = field(default_factory=dict)

    async def run(self) -> dict[str, Any]:
        """The figures."""
        self._resume()
        tasks = {split: self._trials.tasks(split, getattr(self.plan, name))
                 for split, name in (("train", "tasks"), ("heldout", "heldout"), ("unseen", "unseen"))}
        await self._measured(tasks, "before", None)
        if self._wanted():
            policy = await self._worked(self._policy)
            while self._wanted():
                await self._round(policy, tasks["train"])
        await self._measured(tasks, "after", self._adapter)
        return {name: value for name, value in self.state.items() if name != "plan"} | {"plan": asdict(self.plan)}

    async def _worked(self, work: Callable[..., T], *given: Any, **how: Any) -> T:
        """What ``work`` gives, done in the one thread."""
        return await asyncio.get_running_loop().run_in_executor(_THREAD, partial(work, *given, **how))

    @property
    def _rounds(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.state["rounds"]
        return found

    @property
    def _adapter(self) -> Path | None:
        """Of the last round that changed anything."""
        version = self._rounds[-1]["version"] if self._rounds else "0"
        return None if version == "0" else self.home.path / f"adapter-{version}.gguf"

    def _wanted(self) -> bool:
        return "after" not in self.state["points"] and len(self._rounds) < self.plan.rounds \
            and sum(one["seconds"] for one in self._rounds) < self.plan.seconds

    def _resume(self) -> None:
        """What an earlier process did, or nothing. Raises UsageError where it had another plan."""
        path = self.home.path / "state.json"
        if not path.is_file():
            self.state = {"stamp": stamp(self.plan.seed), "plan": asdict(self.plan), "points": {}, "rounds": []}
            return
        self.state = json.loads(path.read_text())
        if self.state["plan"] != asdict(self.plan):
            raise UsageError("this learning was begun with another plan", file=path,
                             remedy="Give the same options as then, or another --home.")
        self.told(f"going on after round {len(self._rounds)}")

    def _keep(self) -> None:
        publish(self.state, self.home.path / "state.json")

    def _policy(self) -> Policy:
        policy = Policy(self.base, seed=self.plan.seed, rate=self.plan.rate, dtype=getattr(torch, self.plan.precision))
        if (adapter := self._adapter) is not None:
            policy.load(adapter.with_suffix(".pt"))
        return policy

    @property
    def _trials(self) -> Trials:
        return Trials(self.home, self.weights, self.plan.seed, self.plan.slots, self.told)

    async def _round(self, policy: Policy, tasks: Sequence[Task]) -> None:
        """Attempts, their groups, an update, a new adapter: one more round on disk."""
        began, number = time.monotonic(), len(self._rounds)
        version = self._rounds[-1]["version"] if self._rounds else "0"
        chosen = curriculum.choose(tasks, self._tried(tasks), Curriculum(size=self.plan.size), count=self.plan.groups,
                                   seed=runs.seed_of(self.plan.seed, "curriculum", number))
        attempts = await self._trials.attempts(self._adapter, version, chosen, self.plan.size,
                                        self.plan.seed * 10_000 + number)
        sampled = time.monotonic()
        groups = await asyncio.to_thread(_groups, Gatherer(self.home, Masker(), policy.vocabulary), attempts)
        stepped = await self._worked(
            update, policy.logprobs, policy.optimizer, samples(groups), clip=Clip(0.2, 0.28), passes=self.plan.passes,
            size=self.plan.rows, seed=number)
        if stepped.samples:
            version = str(number + 1)
            path = self.home.path / f"adapter-{version}.gguf"
            await self._worked(policy.save, path.with_suffix(".pt"))
            await self._worked(policy.write, path)
        self._rounds.append(_told(groups, stepped) | {
            "round": number + 1, "version": version, "ended": curriculum.results(attempts),
            "seconds": round(time.monotonic() - began, 1), "attempts_s": round(sampled - began, 1)})
        self._keep()
        for path in self.home.path.glob("adapter-*.pt"):  # 50 MB each, and only the last is gone on from
            if path.stem != f"adapter-{version}":
                path.unlink()
        one = self._rounds[-1]
        self.told(f"seed {self.plan.seed}, round {number + 1}: {one['passed']}/{one['valid']} passed, "
                  f"{stepped.samples} rows moved something, ratio {stepped.ratio:.4f}, {one['attempts_s']:.0f} + "
                  f"{one['seconds'] - one['attempts_s']:.0f} s")

    def _tried(self, tasks: Sequence[Task]) -> History:
        kinds, tried = {task.id: curriculum.kind(task) for task in tasks}, History()
        for one in self._rounds:
            for task, ended in one["ended"]:
                tried.add(task, kinds[task], ended)
        return tried

    async def _measured(self, tasks: dict[str, list[Task]], when: str, adapter: Path | None) -> None:
        """Held-out and unseen tasks, once each, with the same seeds before and after."""
        if when not in self.state["points"]:
            self.state["points"][when] = await self._trials.measured(tasks["heldout"], tasks["unseen"], when, adapter)
            self._keep()


def _groups(gatherer: Gatherer, attempts: Sequence[Attempt]) -> list[list[Rollout]]:
    """The rollouts of a run, by task."""
    groups: dict[str, list[Rollout]] = {}
    for attempt in attempts:
        groups.setdefault(attempt.task, []).append(gatherer.rollout(attempt)[0])
    return list(groups.values())


def _told(groups: Sequence[Sequence[Rollout]], stepped: Stepped) -> dict[str, Any]:
    all_ = [one for group in groups for one in group]
    rewards = [one.reward for one in all_ if one.reward is not None]
    lengths = [len(row.token_ids) for one in all_ for row in one.rows]
    return {
        "rollouts": len(all_), "valid": sum(one.valid for one in all_), "passed": sum(bool(one.passed) for one in all_),
        "trainable": sum(one.trainable for one in all_), "reward": round(mean(rewards), 4) if rewards else None,
        "ids_per_row": round(mean(lengths), 1) if lengths else None, "step": asdict(stepped),
        "sampled_by": sorted({str(one) for rollout in all_ for row in rollout.rows for one in row.policy_versions}),
    }
