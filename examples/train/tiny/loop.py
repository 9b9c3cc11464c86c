"""The loop: tasks, attempts in sandboxes, verdicts, groups, token rows, an update, new weights behind the same address.

Everything but the network, its server and the optimizer is Woodshed's, used as anybody would use it.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from tiny.babble import babbler
from tiny.child import Child
from tiny.faults import Faults
from tiny.network import Network, Shape
from tiny.server import load, save
from tiny.text import Vocabulary
from tiny.warm import learn, talks, vocabulary
from woodshed.measure.curriculum import Curriculum, History
from woodshed.measure.rates import difference, wilson
from woodshed.model import Agent, AgentLimits, Attempt, ModelSpec, Run, Sampling, Task, Valid
from woodshed.model.rollout import CaptureLevel, Rollout
from woodshed.model.rules import ClaimRule, RuleSet, TestsRule, VerifiedRule
from woodshed.services import curriculum, families, runs
from woodshed.services.exporting import Order, export
from woodshed.services.gathering import Gatherer
from woodshed.services.home import Home
from woodshed.tasks.families import instance, named
from woodshed.tasks.load import find_tasks
from woodshed.trainers.grpo_step import Clip, Stepped, samples, update
from woodshed.trainers.rules import ExportRules, SftRules
from woodshed.trainers.secrets import Masker

FAMILY = "first-commands"
TOOLS = ("bash", "read_file", "write_file", "edit_file", "search", "finish")
RULES = RuleSet(rules=(
    TestsRule(name="solved", gate=True), TestsRule(name="work", weight=2.0),
    ClaimRule(weight=1.0, silent=0.0), VerifiedRule(weight=1.0, patterns=(r"^(cat|ls)\b",)),
))
"""Half for the work, a quarter each for having looked at it afterwards, and for saying that it is done; all or nothing
of it with the tests."""
_MOST = 32
"""Ids of an answer: a call with two arguments has about twenty."""
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything. ``seconds`` bounds the rounds; ``enough`` of ``between`` held-out tasks ends them.

    ``templates`` are those of training; all, where none is named. ``babble`` is the attempts of the warm start, of
    which the share ``shown`` demonstrates a task, of one call and of two, and the rest means nothing. ``faults`` strike
    what is learnt from.
    """

    seed: int = 0
    templates: tuple[str, ...] = ()
    tasks: int = 300
    heldout: int = 200
    unseen: int = 100
    between: int = 60
    every: int = 5
    babble: int = 1000
    shown: tuple[float, ...] = (0.25, 0.65)
    warm: int = 1000
    width: int = 64
    rounds: int = 40
    groups: int = 32
    size: int = 8
    rate: float = 1e-3
    passes: int = 2
    rows: int = 96
    entropy: float = 0.01
    turns: int = 5
    slots: int = 8
    seconds: float = 330.0
    enough: float = 0.92
    faults: Faults | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured on ``split``, sampled, with the weights of a round: ``full`` earned everything there is."""

    round: int
    attempts: int
    seconds: float
    split: str
    valid: int
    passed: int
    full: int

    def told(self) -> dict[str, Any]:
        """With rates and their 95 % intervals."""
        rates = {name: {"rate": round(count / self.valid, 4), "interval": [round(x, 4) for x in wilson(
            count / self.valid, self.valid)]} for name, count in (("passed", self.passed), ("full", self.full))} \
            if self.valid else {}
        return asdict(self) | {"rates": rates}


@dataclass
class Learning:
    """One learning from nothing to the end; what it did stands in ``points`` and ``rounds``.

    ``begun`` is a folder of the network after the warm start, which several learnings share: made by the first of them.
    """

    home: Home
    plan: Plan
    told: Told
    begun: Path | None = None
    points: list[Point] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    tried: History = field(default_factory=History)
    spent_s: dict[str, float] = field(default_factory=dict)
    tried_in_all: int = 0
    began: float = field(default_factory=time.monotonic)

    async def run(self) -> dict[str, Any]:
        """The figures."""
        tasks = {split: self._tasks(split, count) for split, count in (
            ("train", self.plan.tasks), ("heldout", self.plan.heldout), ("unseen", self.plan.unseen))}
        network, words, losses = await self._warm(tasks["train"])
        folder = self.home.path / "tiny"
        save(network, words, folder)
        async with AsyncExitStack() as stack:
            child = await stack.enter_async_context(Child(folder, slots=self.plan.slots))
            for split in ("heldout", "unseen"):
                await self._measure(child, tasks[split], split, 0)
            last = await self._learn(child, network, tasks, folder, len(words))
            for split in ("heldout", "unseen"):
                await self._measure(child, tasks[split], split, last)
        return {
            "plan": asdict(self.plan), "points": [point.told() for point in self.points], "rounds": self.rounds,
            "attempts": self.tried_in_all, "seconds": round(time.monotonic() - self.began, 1),
            "spent_s": {name: round(value, 1) for name, value in self.spent_s.items()},
            "gained": self._gained(),
            "parameters": sum(one.numel() for one in network.parameters()), "vocabulary": len(words),
            "warm_loss": [round(losses[0], 4), round(mean(losses[-10:]), 4)] if losses else None,
        }

    def _tasks(self, split: str, count: int) -> list[Task]:
        if not count:
            return []
        folder, chosen = self.home.path / "tasks" / split, self.plan.templates
        times = -(-len(named(FAMILY).templates) // len(chosen)) if chosen else 1
        tasks = find_tasks(families.generate(FAMILY, split, folder, count=count * times, seed=self.plan.seed))
        dice = random.Random(self.plan.seed)  # noqa: S311 (repeatable, nothing secret)
        of_them = [one for one in tasks if not chosen or split == "unseen" or one.metadata["template"] in chosen]
        return dice.sample(of_them, min(count, len(of_them)))

    async def _warm(self, tasks: Sequence[Task]) -> tuple[Network, Vocabulary, list[float]]:
        """A network that speaks, from what a babbler did, as ``--format sft`` exports it; or the one that was begun."""
        if self.begun is not None and self.begun.is_dir():
            return *load(self.begun), []
        made = [instance(named(FAMILY), str(task.metadata["template"]), int(task.metadata["number"])) for task in tasks]
        async with babbler({one.exercise.instruction: one.exercise.calls for one in made}, self.plan.shown) as url:
            times = -(-self.plan.babble // len(tasks))
            tasks = tasks[: -(-self.plan.babble // times)]
            run = await self._attempts(ModelSpec(name="babble", base_url=url), tasks, times, self.plan.seed)
        started = time.monotonic()
        order = Order("sft", self.home.path / "warm", rules=ExportRules(sft=SftRules(passed=False)))
        files = export(self.home, [run], order).files
        rows = [json.loads(line) for file in files if file.suffix == ".jsonl" for line in file.read_text().splitlines()]
        words = vocabulary(rows, size=1024)
        torch.manual_seed(self.plan.seed)
        network = Network(Shape(len(words), width=self.plan.width, layers=2))
        losses = await asyncio.to_thread(
            learn, network, talks(rows, words), steps=self.plan.warm, seed=self.plan.seed)
        self._spent("warm start", started)
        self.told(f"warm start: {len(rows)} answers of a babbler, loss {losses[0]:.2f} to {mean(losses[-10:]):.2f}")
        if self.begun is not None:
            partial = self.begun.with_name(f"{self.begun.name}.partial")
            save(network, words, partial)
            partial.rename(self.begun)
        return network, words, losses

    async def _learn(
        self, child: Child, network: Network, tasks: Mapping[str, Sequence[Task]], folder: Path, vocabulary: int
    ) -> int:
        """Round after round; the last one."""
        optimizer = torch.optim.AdamW(network.parameters(), lr=self.plan.rate, betas=(0.9, 0.95), weight_decay=0.0)
        gatherer = Gatherer(self.home, Masker(), vocabulary)
        sampler = Curriculum(size=self.plan.size)
        until, round_, version = time.monotonic() + self.plan.seconds, 0, "0"
        while round_ < self.plan.rounds and time.monotonic() < until and not self._enough():
            chosen = curriculum.choose(tasks["train"], self.tried, sampler, count=self.plan.groups,
                                       seed=runs.seed_of(self.plan.seed, "curriculum", round_))
            run = await self._attempts(self._model(child), chosen, self.plan.size, self.plan.seed * 10_000 + round_)
            attempts = self.home.store.attempts(run.id)
            if self.plan.faults is not None:
                attempts = self.plan.faults.struck(attempts, self.plan.seed * 10_000 + round_)
            kinds = {task.id: curriculum.kind(task) for task in chosen}
            for task, ended in curriculum.results(attempts):
                self.tried.add(task, kinds[task], ended)
            started = time.monotonic()
            groups = await asyncio.to_thread(_groups, gatherer, attempts)
            given = samples(groups)
            stepped = await asyncio.to_thread(
                update, network, optimizer, given, clip=Clip(0.2, 0.28), passes=self.plan.passes,
                size=self.plan.rows, entropy=self.plan.entropy, seed=round_)
            self._spent("updates", started)
            round_ += 1
            if stepped.samples:
                version, weights = str(round_), folder / "weights.pt"
                torch.save(network.state_dict(), weights)
                await child.load(weights, version)
            self._record(round_, chosen, groups, stepped, version)
            if round_ % self.plan.every == 0 and self.plan.between and round_ < self.plan.rounds:
                await self._measure(child, tasks["heldout"][: self.plan.between], "heldout", round_)
        return round_

    def _model(self, child: Child) -> ModelSpec:
        return ModelSpec(name="tiny", base_url=child.url, capture="vllm", capture_least=CaptureLevel.LOGPROBS,
                         sampling=Sampling(temperature=1.0, max_tokens=_MOST))

    async def _attempts(self, model: ModelSpec, tasks: Sequence[Task], times: int, seed: int) -> Run:
        """A finished run of our loop: ``times`` attempts of each task."""
        started = time.monotonic()
        agent = Agent(name=model.name, harness="loop", model=model, dialect="tools", tools=TOOLS,
                      limits=AgentLimits(turns=self.plan.turns))
        spec, found = runs.plan([task.folder for task in tasks], [agent], attempts=times, concurrency=self.plan.slots,
                                seed=seed, engine="native", rules=RULES)
        run = await runs.start(self.home, spec, found, lambda tally: None)
        self._spent("attempts", started)
        self.tried_in_all += len(tasks) * times
        return run

    async def _measure(self, child: Child, tasks: Sequence[Task], split: str, round_: int) -> None:
        if not tasks:
            return
        model = ModelSpec(name="tiny", base_url=child.url, sampling=Sampling(temperature=1.0, max_tokens=_MOST))
        run = await self._attempts(model, tasks, 1, self.plan.seed)
        verdicts = [one.outcome.verdict for one in self.home.store.attempts(run.id) if one.outcome is not None]
        valid = [one for one in verdicts if isinstance(one, Valid)]
        point = Point(round_, self.tried_in_all, round(time.monotonic() - self.began, 1), split, len(valid),
                      sum(one.passed for one in valid), sum((one.total or 0.0) > 0.999 for one in valid))
        self.points.append(point)
        self.told(f"round {round_}, {split}: {point.passed}/{point.valid} passed, {point.full} in full")

    def _record(
        self, round_: int, chosen: Sequence[Task], groups: Sequence[Sequence[Rollout]], stepped: Stepped, version: str
    ) -> None:
        all_ = [one for group in groups for one in group]
        rewards = [one.reward for one in all_ if one.reward is not None]
        versions = {version for one in all_ for row in one.rows for version in row.policy_versions}
        self.rounds.append({
            "round": round_, "seconds": round(time.monotonic() - self.began, 1),
            "reward": round(mean(rewards), 4) if rewards else None, "valid": sum(one.valid for one in all_),
            "passed": sum(bool(one.passed) for one in all_), "rollouts": len(all_),
            "trainable": sum(one.trainable for one in all_), "versions": sorted(map(str, versions)), "version": version,
            "tasks": [task.id for task in chosen], "step": asdict(stepped),
        })
        self.told(f"round {round_}: reward {self.rounds[-1]['reward']}, {stepped.samples} rows moved something, "
                  f"ratio {stepped.ratio:.4f}, {self.rounds[-1]['seconds']:.0f} s")

    def _gained(self) -> dict[str, Any]:
        """How many more held-out tasks pass, and earn in full, at the end than at the beginning; 95 % intervals."""
        whole = [point for point in self.points if point.split == "heldout" and point.valid]
        told = {}
        for name, before, after in (("passed", whole[0].passed, whole[-1].passed),
                                    ("full", whole[0].full, whole[-1].full)) if len(whole) > 1 else ():
            gained, interval = difference((before, whole[0].valid), (after, whole[-1].valid))
            told[name] = {"rate": round(gained, 4), "interval": [round(one, 4) for one in interval]}
        return told

    def _enough(self) -> bool:
        """The attempts on held-out tasks said so."""
        measured = [point for point in self.points if point.split == "heldout" and point.round]
        return bool(measured) and measured[-1].full >= self.plan.enough * measured[-1].valid

    def _spent(self, what: str, started: float) -> None:
        self.spent_s[what] = self.spent_s.get(what, 0.0) + time.monotonic() - started


def _groups(gatherer: Gatherer, attempts: Sequence[Attempt]) -> list[list[Rollout]]:
    """The rollouts of a run, by task."""
    groups: dict[str, list[Rollout]] = {}
    for attempt in attempts:
        groups.setdefault(attempt.task, []).append(gatherer.rollout(attempt)[0])
    return list(groups.values())
