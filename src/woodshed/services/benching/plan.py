"""``woodshed bench plan``: a plan made of a pilot, beside the run that it is of, in real time."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from woodshed.engine.capacity import cores
from woodshed.errors import EnvironmentFault, UsageError
from woodshed.model import Run
from woodshed.services import planning
from woodshed.services.agents import build
from woodshed.services.home import opened
from woodshed.services.measured import stamp
from woodshed.services.planning import Crowd, Question
from woodshed.tasks.load import find_tasks

AIM = 0.15
"""The makespan is to be foretold within this."""
AGENT = "oracle"


def measure(
    paths: Sequence[Path], *, attempts: int, pilot: int, concurrency: int, rounds: int, seed: int,
    told: Callable[[str], None],
) -> dict[str, Any]:
    """The figures: the makespan foretold and the real one of each round, and by how much the first is off.

    About ``attempts`` in all, the same number of each task. Each round has a pilot of its own. Raises UsageError where
    there are fewer than tasks, EnvironmentFault when a run fails.
    """
    count = len(find_tasks(list(paths)))
    if min(attempts, pilot) < count:
        raise UsageError(f"{count} tasks want {count} attempts at least", field="--attempts, --pilot",
                         remedy="Raise both, or name fewer tasks.")
    with tempfile.TemporaryDirectory(prefix="woodshed-bench-") as place:
        bench = _Bench(paths, Path(place) / "home", concurrency=concurrency, seed=seed)
        told("warming up: layers, caches, one attempt of each task")
        bench.run(1)
        made = []
        for number in range(1, rounds + 1):
            made.append(bench.round(max(1, pilot // count), max(1, attempts // count)))
            told(f"round {number}/{rounds}: foretold {made[-1]['foretold_p50_s']:.1f} s "
                 f"(9 of 10: {made[-1]['foretold_p90_s']:.1f} s), took {made[-1]['took_s']:.1f} s")
    return {**stamp(seed), "benchmark": "plan", **figures(made), "tasks": count, "agent": AGENT,
            "concurrency": concurrency, "attempts": made[0]["attempts"], "pilot": made[0]["pilot"],
            "load": os.getloadavg()[0], "samples": made}


def figures(made: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the rounds; ``off`` is the median of how far off each was, as a share of what it took."""
    off = statistics.median(abs(one["off"]) for one in made)
    return {
        "foretold_p50_s": round(statistics.median(one["foretold_p50_s"] for one in made), 2),
        "foretold_p90_s": round(statistics.median(one["foretold_p90_s"] for one in made), 2),
        "took_s": round(statistics.median(one["took_s"] for one in made), 2),
        "off": round(off, 4), "off_percent": round(100 * off, 2), "aim": AIM, "met": off <= AIM,
    }


class _Bench:
    """Runs in a home of its own, each a process of its own, as a user starts them."""

    def __init__(self, paths: Sequence[Path], home: Path, *, concurrency: int, seed: int) -> None:
        self._paths, self._home, self._concurrency, self._seed = paths, home, concurrency, seed
        self._env = {**os.environ, "WOODSHED_HOME": str(home)}
        self._env.pop("WOODSHED_DATABASE_URL", None)

    def round(self, pilot: int, attempts: int) -> dict[str, Any]:
        """A pilot, the plan that it gives, and the run."""
        name = self.run(pilot)
        with opened(self._home) as home:
            question = Question(tasks=find_tasks(list(self._paths)), agents=build([AGENT], None), attempts=attempts,
                                crowd=Crowd(1, self._concurrency, float(cores())), seed=self._seed, rounds=100)
            answer = planning.told(question, planning.evidence(home, question, [name]))
        real = self.run(attempts)
        with opened(self._home) as home:
            took_s = _took_s(home.store.run(real))
        foretold = answer["forecast"]
        return {
            "pilot": answer["evidence"]["executions"], "attempts": answer["attempts"], "took_s": round(took_s, 3),
            "foretold_p50_s": round(foretold["makespan_p50_s"], 3), "off": round(
                foretold["makespan_p50_s"] / took_s - 1, 4),
            "foretold_p90_s": round(foretold["makespan_p90_s"], 3), "bottleneck": foretold["bottleneck"],
        }

    def run(self, attempts: int) -> str:
        """So many attempts of each task; the run's id."""
        done = subprocess.run(
            [sys.executable, "-m", "woodshed", "run", *map(str, self._paths), "--agent", AGENT, "-n", str(attempts),
             "-c", str(self._concurrency), "--seed", str(self._seed), "--new", "--json"],
            env=self._env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise EnvironmentFault(f"woodshed run failed: {done.stderr[-500:]}")
        name: str = json.loads(done.stdout.strip().splitlines()[-1])["run"]
        return name


def _took_s(run: Run) -> float:
    assert run.finished_at is not None
    return (run.finished_at - run.created_at).total_seconds()
