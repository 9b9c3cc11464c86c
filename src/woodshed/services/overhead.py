"""What Woodshed costs over the bare work: the same oracle attempts with it and without it, in one run.

Bare means, for each attempt: copy the start, run the reference script, run the same test command with the same report;
no isolation, no verdict, no record; ``xargs -P`` keeps as many going as Woodshed's ``--concurrency``. Rounds alternate,
so that a machine whose speed drifts harms both alike; the ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from woodshed.errors import EnvironmentFault, UsageError
from woodshed.model import Framework, Task
from woodshed.services.measured import stamp
from woodshed.tasks.load import find_tasks

PYTEST = "pytest==9.2.0"
"""What the base layer of a sandbox has, so that both run the same."""
_BARE = """#!/bin/bash
# One bare attempt: $1 is the prepared task. Exits 0 when its tests passed.
set -e
here=$(mktemp -d "$BARE_SCRATCH/XXXXXXXX")
cp -a "$1/start/." "$here"
cd "$here/workspace"
bash "$1/solution/solve.sh" >/dev/null 2>&1
bash ../tests/test.sh >/dev/null 2>&1 && code=0 || code=$?
[ -s ../logs/verifier/ctrf.json ] || [ -s ../logs/verifier/junit.xml ]
cd / && rm -rf "$here"
exit $code
"""


def measure(
    paths: Sequence[Path],
    *,
    attempts: int,
    concurrency: int,
    rounds: int,
    seed: int,
    told: Callable[[str], None],
) -> dict[str, Any]:
    """The figures: ``bare_per_s``, ``woodshed_per_s``, ``ratio``, their samples, and CPU milliseconds by stage.

    Raises UsageError for tasks without a reference or of a framework that cannot run bare.
    """
    tasks = find_tasks(list(paths))
    for task in tasks:
        if task.solution is None or task.environment.requirements or task.verifier.framework is Framework.NODE:
            raise UsageError(
                "cannot be run bare", file=task.folder, remedy="Measure tasks with a solution and no requirements."
            )
    with tempfile.TemporaryDirectory(prefix="woodshed-bench-") as place:
        scratch = Path(place)
        bare = _Bare(tasks, scratch, attempts=attempts, concurrency=concurrency)
        shed = _Shed(paths, scratch, attempts=attempts, concurrency=concurrency, seed=seed)
        told("warming up: layers, caches, one round of each")
        bare.round()
        shed.round()
        samples: dict[str, list[float]] = {"bare": [], "woodshed": []}
        for index in range(rounds):
            samples["bare"].append(bare.round())
            samples["woodshed"].append(shed.round())
            told(f"round {index + 1}/{rounds}: " + ", ".join(f"{name} {v[-1]:.1f}/s" for name, v in samples.items()))
        busy = {"bare": bare.busy_s / bare.done, "woodshed": shed.busy_s / shed.done}
        stages = shed.cpu_by_stage()
    count = len(tasks) * attempts
    ratios = [bare_s / shed_s for bare_s, shed_s in zip(samples["bare"], samples["woodshed"], strict=True)]
    return {
        **stamp(seed),
        "benchmark": "run",
        "tasks": len(tasks),
        "framework": sorted({task.verifier.framework.value if task.verifier.framework else "none" for task in tasks}),
        "attempts": count,
        "concurrency": concurrency,
        "bare_per_s": round(statistics.median(samples["bare"]), 2),
        "woodshed_per_s": round(statistics.median(samples["woodshed"]), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "samples": {name: [round(value, 2) for value in values] for name, values in samples.items()},
        "cpu_ms_per_attempt": {**{name: round(1000 * seconds, 2) for name, seconds in busy.items()}, **stages},
    }


class _Bare:
    """Prepared copies of the tasks whose scripts name places relative to the attempt, and a way to run them all."""

    def __init__(self, tasks: Sequence[Task], scratch: Path, *, attempts: int, concurrency: int) -> None:
        self._prepared, self._runs = scratch / "prepared", scratch / "bare"
        self._runs.mkdir()
        self._concurrency = concurrency
        self._script = scratch / "bare.sh"
        self._script.write_text(_BARE)
        folders = [_prepare(task, self._prepared / str(number)) for number, task in enumerate(tasks)]
        self._order = folders * attempts
        path = f"{_python(tasks, scratch)}:{os.environ['PATH']}"
        self._env = {**os.environ, "BARE_SCRATCH": str(self._runs), "PATH": path}
        self.busy_s, self.done = 0.0, 0

    def round(self) -> float:
        """Every attempt once; attempts a second. Raises EnvironmentFault when one of them does not pass."""
        before, started = _busy_s(), time.perf_counter()
        done = subprocess.run(
            ["xargs", "-P", str(self._concurrency), "-I{}", "bash", str(self._script), "{}"],
            input="\n".join(map(str, self._order)),
            text=True,
            env=self._env,
            capture_output=True,
            check=False,
        )
        seconds = time.perf_counter() - started
        if done.returncode:
            raise EnvironmentFault(f"a bare attempt failed (xargs {done.returncode}): {done.stderr[-500:]}")
        self.busy_s += _busy_s() - before
        self.done += len(self._order)
        return len(self._order) / seconds


class _Shed:
    """The same attempts through ``woodshed run``, each round a process of its own on one state folder."""

    def __init__(self, paths: Sequence[Path], scratch: Path, *, attempts: int, concurrency: int, seed: int) -> None:
        self._env = {**os.environ, "WOODSHED_HOME": str(scratch / "home")}
        self._paths, self._attempts, self._concurrency, self._seed = paths, attempts, concurrency, seed
        self.busy_s, self.done = 0.0, 0

    def round(self) -> float:
        """Every attempt once; attempts a second over the whole run as ``run`` itself reports it."""
        before = _busy_s()
        summary = self._run(self._attempts, self._concurrency)
        self.busy_s += _busy_s() - before
        count = sum(row["attempts"] for row in summary["agents"])
        self.done += count
        return float(count / summary["elapsed_s"])

    def cpu_by_stage(self) -> dict[str, float]:
        """CPU milliseconds of an attempt in our own process, by stage, in a run of one attempt at a time."""
        summary = self._run(1, 1)
        return self._stages(summary["run"], sum(row["attempts"] for row in summary["agents"]))

    def _stages(self, run: str, count: int) -> dict[str, float]:
        from woodshed.services.home import opened

        with opened(Path(self._env["WOODSHED_HOME"])) as home:
            spent: dict[str, float] = {}
            for attempt in home.store.attempts(run):
                for event in home.store.events(attempt.id):
                    if event.kind == "stage":
                        key = f"own_{event.data['stage']}"
                        spent[key] = spent.get(key, 0.0) + event.data["cpu_s"]
        return {key: round(1000 * seconds / count, 2) for key, seconds in spent.items()}

    def _run(self, attempts: int, concurrency: int) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "woodshed", "run", *map(str, self._paths), "--agent", "oracle", "-n", str(attempts),
             "-c", str(concurrency), "--seed", str(self._seed), "--new", "--json"],
            env=self._env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise EnvironmentFault(f"woodshed run failed: {done.stderr[-500:]}")
        summary: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        for row in summary["agents"]:
            if row["passed"] != row["attempts"]:
                raise EnvironmentFault(f"only {row['passed']} of {row['attempts']} oracle attempts passed")
        return summary


def _busy_s() -> float:
    """Seconds in which the machine's CPUs were busy since it started: processes end as nobody's children of ours.

    From /proc/stat (proc_stat(5)): user, nice, system, irq and softirq; on an otherwise quiet machine, the work's own.
    """
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    ticks = sum(int(fields[index]) for index in (0, 1, 2, 5, 6))
    return ticks / os.sysconf("SC_CLK_TCK")


def _prepare(task: Task, into: Path) -> Path:
    """``into/start/{workspace,tests,logs/verifier}`` and ``into/solution``, their places made relative."""
    assert task.solution is not None
    start = into / "start"
    (start / "logs" / "verifier").mkdir(parents=True)
    for upload in task.environment.uploads:
        shutil.copytree(upload.source, start / "workspace", symlinks=True, dirs_exist_ok=True)
    (start / "workspace").mkdir(exist_ok=True)
    shutil.copytree(task.verifier.tests, start / "tests", symlinks=True)
    shutil.copytree(task.solution, into / "solution", symlinks=True)
    places = {
        b"/logs/verifier": b"../logs/verifier",
        b"/tests": b"../tests",
        task.environment.workdir.encode(): b"../workspace",
        b"/solution": str(into / "solution").encode(),
    }
    for file in (*(start / "tests").rglob("*"), *(into / "solution").rglob("*")):
        if file.is_file() and not file.is_symlink():
            text = file.read_bytes()
            for place, here in places.items():  # as an absolute path only: not inside another one
                text = re.sub(rb"(?<![\w./])" + re.escape(place) + rb"(?![\w-])", here, text)
            file.write_bytes(text)
    return into


def _python(tasks: Sequence[Task], scratch: Path) -> Path:
    """The folder of the interpreter that bare attempts use; with pytest beside it where a task wants that."""
    base = Path(os.path.realpath(sys.base_prefix)) / "bin"
    if not any(task.verifier.framework is Framework.PYTEST for task in tasks):
        return base
    venv = scratch / "venv"
    subprocess.run([base / "python3", "-m", "venv", venv], check=True, capture_output=True)
    subprocess.run([venv / "bin" / "pip", "install", "--quiet", PYTEST], check=True, capture_output=True)
    return venv / "bin"
