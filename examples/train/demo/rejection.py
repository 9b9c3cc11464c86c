"""Rejection sampling: attempts by the model as it is, an export of those that passed, TRL's SFT over it, and the same

held-out tasks before and after. After each of these the state stands on disk; begun again, it goes on there.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from demo.policy import Policy
from demo.trials import Trials
from woodshed.errors import UsageError
from woodshed.model import Valid
from woodshed.services.home import Home
from woodshed.services.measured import publish, stamp

_ADAPTER = "adapter-1.gguf"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything: ``times`` attempts of each of ``tasks``, of which at most ``most`` are learnt from.

    ``rows`` go through the model at a time, and ``batch`` make an update.
    """

    seed: int = 0
    tasks: int = 120
    times: int = 4
    most: int = 2
    heldout: int = 90
    unseen: int = 45
    epochs: float = 2.0
    rate: float = 2e-4
    rows: int = 4
    batch: int = 8
    slots: int = 4


@dataclass
class Rejection:
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
        trials = Trials(self.home, self.weights, self.plan.seed, self.plan.slots, self.told)
        heldout, unseen = trials.tasks("heldout", self.plan.heldout), trials.tasks("unseen", self.plan.unseen)
        if "before" not in self.state["points"]:
            self._point("before", await trials.measured(heldout, unseen, "before", None))
        if "sampled" not in self.state:
            await self._sampled(trials)
        if "learnt" not in self.state:
            self._keep("learnt", await asyncio.to_thread(self._learnt))
        if "after" not in self.state["points"]:
            self._point("after", await trials.measured(heldout, unseen, "after", self.home.path / _ADAPTER))
        return {name: value for name, value in self.state.items() if name != "plan"} | {"plan": asdict(self.plan)}

    async def _sampled(self, trials: Trials) -> None:
        """Attempts at tasks to learn from, and those that passed as a data set, by the command that anybody has."""
        began = time.monotonic()
        tasks = trials.tasks("train", self.plan.tasks)
        run = await trials.run(None, "0", tasks, self.plan.times, self.plan.seed * 10_000)
        verdicts = [one.outcome.verdict for one in self.home.store.attempts(run.id) if one.outcome is not None]
        valid = [one for one in verdicts if isinstance(one, Valid)]
        card = await asyncio.to_thread(self._exported, run.id)
        self._keep("sampled", {
            "run": run.id, "tasks": len(tasks), "attempts": len(verdicts), "valid": len(valid),
            "passed": sum(one.passed for one in valid), "rows": card["rows"], "dropped": card["dropped"],
            "seconds": round(time.monotonic() - began, 1)})
        told = self.state["sampled"]
        self.told(f"seed {self.plan.seed}: {told['passed']}/{told['valid']} attempts at {told['tasks']} tasks passed; "
                  f"{told['rows']} examples, at most {self.plan.most} of a task")

    def _exported(self, run: str) -> dict[str, Any]:
        """The card of the export."""
        rules = self.home.path / "rules.toml"
        rules.write_text(f"[sft]\nmost = {self.plan.most}\n")
        done = subprocess.run(
            [sys.executable, "-m", "woodshed", "export", run, "--format", "sft", "--rules", rules, "--out", self._set,
             "--json"], env={**os.environ, "WOODSHED_HOME": str(self.home.path)}, capture_output=True, text=True,
            check=False)
        if done.returncode:
            raise UsageError(f"the export ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        card: dict[str, Any] = json.loads(done.stdout)["card"]
        return card

    @property
    def _set(self) -> Path:
        return self.home.path / "sft"

    def _learnt(self) -> dict[str, Any]:
        """TRL's own trainer over the exported examples; the adapter stands beside them."""
        os.environ["HF_HUB_OFFLINE"] = "1"
        from datasets import load_dataset
        from transformers import AutoTokenizer
        from trl import SFTConfig, SFTTrainer

        began, plan = time.monotonic(), self.plan
        policy = Policy(self.base, seed=plan.seed, rate=plan.rate, dtype=torch.float32)
        examples = load_dataset(str(self._set), split="train", cache_dir=str(self.home.path / "cache"))
        trainer = SFTTrainer(
            policy.model, train_dataset=examples.select_columns(["prompt", "completion"]),
            processing_class=AutoTokenizer.from_pretrained(self.weights.parent, gguf_file=self.weights.name),
            args=SFTConfig(
                output_dir=str(self.home.path / "trl"), per_device_train_batch_size=plan.rows,
                gradient_accumulation_steps=max(1, plan.batch // plan.rows), num_train_epochs=plan.epochs,
                learning_rate=plan.rate, lr_scheduler_type="cosine", warmup_steps=4, max_length=1024, use_cpu=True,
                bf16=False, gradient_checkpointing=False, report_to=[], save_strategy="no", logging_steps=1,
                disable_tqdm=not sys.stderr.isatty(), seed=plan.seed))
        trainer.train()
        policy.write(self.home.path / _ADAPTER)
        losses = [round(one["loss"], 4) for one in trainer.state.log_history if "loss" in one]
        self.told(f"seed {plan.seed}: {len(losses)} updates, loss {losses[0]:.3f} to {losses[-1]:.3f}")
        return {"examples": len(examples), "updates": len(losses), "losses": losses,
                "seconds": round(time.monotonic() - began, 1)}

    def _resume(self) -> None:
        """What an earlier process did, or nothing. Raises UsageError where it had another plan."""
        path = self.home.path / "state.json"
        if not path.is_file():
            self.state = {"stamp": stamp(self.plan.seed), "plan": asdict(self.plan), "points": {}}
            return
        self.state = json.loads(path.read_text())
        if self.state["plan"] != asdict(self.plan):
            raise UsageError("this learning was begun with another plan", file=path,
                             remedy="Give the same options as then, or another --home.")

    def _point(self, when: str, point: dict[str, Any]) -> None:
        self._keep("points", self.state["points"] | {when: point})

    def _keep(self, name: str, value: Any) -> None:
        self.state[name] = value
        publish(self.state, self.home.path / "state.json")
