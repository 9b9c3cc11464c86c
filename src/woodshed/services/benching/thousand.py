"""The thousand: attempts by reference and by model, amid refusals, hangs and killed workers; all are accounted for.

Workers execute them as a user's would; some are killed at random and others take their place, one lives from the
beginning to the end: it is what is weighed. All faults come from outside (:mod:`woodshed.services.benching.faulty`,
SIGKILL), and each attempt has a right answer, so that any valid total of 0 is a false one.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed.model import Attempt, Invalid, RunState, Valid
from woodshed.services.benching import faulty, void
from woodshed.services.benching.bound import bound
from woodshed.services.benching.left import Traces
from woodshed.services.benching.postgres import private_server
from woodshed.services.benching.queue import Site, resident_mb
from woodshed.services.measured import stamp
from woodshed.store.records import Store

_RETRY = """infrastructure = 8
model = 8
breaker = false
[[retry]]
cause = "model_api"
max = 8
backoff_s = 0.2
[[retry]]
max = 8
backoff_s = 0.2
"""
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Size:
    """``tasks`` × ``attempts`` each by the reference and by the model. ``kills`` workers die on the way."""

    tasks: int = 100
    attempts: int = 5
    workers: int = 2
    slots: int = 4
    faults: float = 0.05
    kills: int = 10


@dataclass(slots=True)
class _Scene:
    """The workers, and the weight of the steady one over time: (attempts done, MB)."""

    site: Site
    size: Size
    dice: random.Random
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    weights: list[tuple[int, float]] = field(default_factory=list)
    killed: int = 0

    def start(self) -> None:
        """One more worker."""
        self.workers.append(subprocess.Popen(
            [sys.executable, "-m", "woodshed", "worker", "--slots", str(self.size.slots), "--until-empty", "--json"],
            env=self.site.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        bound(self.workers[-1])

    def look(self, done: int, total: int) -> None:
        """Weigh the steady worker; kill another when its time has come, and start one in its place."""
        self.weights.append((done, resident_mb(self.workers[0].pid)))
        due = done >= (self.killed + 1) * total / (self.size.kills + 2)
        if due and self.killed < self.size.kills and len(self.workers) > 1:
            victim = self.workers.pop(self.dice.randrange(1, len(self.workers)))
            victim.kill()
            victim.wait()
            self.killed += 1
        while len(self.workers) < self.size.workers:
            self.start()

    def end(self) -> None:
        """The workers leave by themselves; nothing of ours goes on."""
        for worker in self.workers:
            worker.wait()


def measure(size: Size, *, database: str, seed: int, told: Callable[[str], None]) -> dict[str, Any]:
    """The figures. Raises UsageError for a database that is not here, EnvironmentFault for a run that cannot begin."""
    started = time.perf_counter()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="woodshed-bench-")))
        url, server = stack.enter_context(private_server()) if database == "postgresql" else (None, None)
        site = _site(scratch, size, url, server, seed)
        traces = Traces(site.home)
        address, did = stack.enter_context(faulty.model(size.faults, seed))
        run = _submit(site, scratch, size, address, seed)
        store = stack.enter_context(Store(site.url, site.home))
        scene = _Scene(site, size, random.Random(seed))  # noqa: S311 (repeatable)
        try:
            _drive(scene, store, run, traces, told)
        finally:
            for worker in scene.workers:
                if worker.poll() is None:
                    worker.kill()
        figures = _figures(store, run, scene)
        figures |= {"left": traces.left(), "model_answers": dict(did)}
    return {**stamp(seed), "benchmark": "thousand", "database": database, "elapsed_s": round(
        time.perf_counter() - started, 1), "load": [round(one, 2) for one in os.getloadavg()], **figures}


def _drive(scene: _Scene, store: Store, run: str, traces: Traces, told: Callable[[str], None]) -> None:
    total = scene.size.tasks * scene.size.attempts * 2
    for _ in range(scene.size.workers):
        scene.start()
    shown = 0
    while store.run(run).state is not RunState.FINISHED:
        done = total - store.queue.left(run)
        scene.look(done, total)
        traces.note()
        if done >= shown + max(1, total // 10):
            shown = done
            told(f"{done}/{total} done, {scene.killed} workers killed, the steady one weighs "
                 f"{scene.weights[-1][1]:.0f} MB")
        time.sleep(_LOOK_S)
    scene.end()


def _site(scratch: Path, size: Size, url: str | None, server: int | None, seed: int) -> Site:
    env = {**os.environ, **void.installed(scratch / "site", faulty.POINTS), "WOODSHED_HOME": str(scratch / "home"),
           faulty.VARIABLE: f"{size.faults}:{seed}"}
    env.pop("WOODSHED_DATABASE_URL", None)
    if url is not None:
        env["WOODSHED_DATABASE_URL"] = url
    (scratch / "home").mkdir(mode=0o700)
    faulty.tasks(scratch / "tasks", size.tasks)
    return Site(scratch / "home", url, server, env, scratch / "tasks")


def _submit(site: Site, scratch: Path, size: Size, address: str, seed: int) -> str:
    import json

    retry = scratch / "retry.toml"
    retry.write_text(_RETRY)
    done = site.run("run", str(site.task), "-a", "oracle", "-a", "loop", "--model", f"scripted@{address}",
                    "-n", str(size.attempts), "--engine", "faulty", "--verifier", "faulty", "--retry", str(retry),
                    "--seed", str(seed), "--detach", "--json")
    return str(json.loads(done.stdout.splitlines()[-1])["run"])


def _figures(store: Store, run: str, scene: _Scene) -> dict[str, Any]:
    attempts = store.attempts(run)
    executions = [one for attempt in attempts for one in store.executions(attempt.id)]
    valid = [one.outcome.verdict for one in attempts if one.outcome and isinstance(one.outcome.verdict, Valid)]
    causes = Counter(one.outcome.broke.cause.value for one in executions if one.outcome and one.outcome.broke)
    groups = store.groups.of(run)
    return {
        "attempts": len(attempts),
        "accounted": sum(one.outcome is not None for one in attempts),
        "valid_rate": round(len(valid) / len(attempts), 5),
        "false_zeros": sum(verdict.total != 1.0 for verdict in valid),
        "false": [_told(one) for one in attempts if one.outcome and isinstance(one.outcome.verdict, Valid)
                  and one.outcome.verdict.total != 1.0],
        "invalid": _why(attempts),
        "executions": len(executions),
        "faults": dict(causes),
        "lost_executions": sum(one.state.value == "lost" for one in executions),
        "killed_workers": scene.killed,
        "groups": len(groups),
        "groups_complete": sum(group.place is not None for group in groups),
        "memory_mb": _memory(scene.weights),
        "samples": [[done, round(weight, 1)] for done, weight in scene.weights[:: max(1, len(scene.weights) // 100)]],
    }


def _told(attempt: Attempt) -> dict[str, Any]:
    """What can be read of an attempt whose total is not what it should be."""
    outcome = attempt.outcome
    return {"attempt": attempt.id, "agent": attempt.agent, "executions": attempt.executions,
            "outcome": outcome.to_json() if outcome else None}


def _why(attempts: Sequence[Attempt]) -> dict[str, int]:
    verdicts = [one.outcome.verdict for one in attempts if one.outcome is not None]
    return dict(Counter(f"{one.cause.value}: {one.detail[:80]}" for one in verdicts if isinstance(one, Invalid)))


def _memory(weights: Sequence[tuple[int, float]]) -> dict[str, float | None]:
    """The most, and the slope over the second half: MB for each thousand attempts (least squares)."""
    half = [one for one in weights[len(weights) // 2:] if one[1] > 0]
    if len(half) < 2 or half[0][0] == half[-1][0]:
        return {"most": max((weight for _, weight in weights), default=0.0), "mb_per_thousand": None}
    middle = sum(done for done, _ in half) / len(half), sum(weight for _, weight in half) / len(half)
    up = sum((done - middle[0]) * (weight - middle[1]) for done, weight in half)
    across = sum((done - middle[0]) ** 2 for done, _ in half)
    return {"most": round(max(weight for _, weight in weights), 1), "mb_per_thousand": round(1000 * up / across, 2)}
