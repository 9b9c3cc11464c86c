"""What leaving an attempt to workers costs: attempts that do nothing, from a queue in SQLite or PostgreSQL.

Each series is a run of its own, taken by one ``woodshed worker`` or several, in processes as a user starts them. Time
is from the beginning of the first attempt to the end of the last, as the records have it. CPU is what the workers and
the server spent, less what a run of few attempts costs them: starting, opening, ending.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed.errors import EnvironmentFault
from woodshed.model import Valid
from woodshed.services.benching import void
from woodshed.services.benching.bound import bound
from woodshed.services.benching.left import descendants
from woodshed.services.benching.postgres import private_server
from woodshed.services.measured import stamp
from woodshed.store.records import Store

FEW = 20
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. ``waiting`` attempts wait ``wait_s`` each; ``queued`` stand in the queue for its weight."""

    attempts: int = 1000
    rounds: int = 3
    slots: int = 8
    waiting: int = 160
    wait_s: float = 0.5
    waiting_slots: int = 8
    queued: int = 10_000


@dataclass(slots=True)
class Site:
    """A home and a database, with the environment that processes on them have."""

    home: Path
    url: str | None
    server: int | None
    env: dict[str, str]
    task: Path

    def cpu_s(self) -> float:
        """CPU seconds that the database's server has used, its ended processes included."""
        if self.server is None:
            return 0.0
        return sum(_cpu_s(pid) for pid in {self.server, *descendants(self.server)}) + _cpu_s(self.server, ended=True)

    def submit(self, agent: str, attempts: int) -> str:
        """A run left to workers; its id."""
        done = self.run("run", str(self.task), "-a", agent, "-n", str(attempts), "--engine", "void", "--verifier",
                        "void", "--detach", "--json")
        return str(json.loads(done.stdout.splitlines()[-1])["run"])

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command that has ended well. Raises EnvironmentFault."""
        done = subprocess.run([sys.executable, "-m", "woodshed", *words], env=self.env, capture_output=True, text=True,
                              check=False)
        if done.returncode:
            raise EnvironmentFault(f"woodshed {words[0]} failed: {done.stderr[-500:]}")
        return done


@dataclass(slots=True)
class Series:
    """One run and what it took: attempts a second, and CPU seconds by whose."""

    attempts: int
    per_s: float
    worker_cpu_s: float
    server_cpu_s: float
    peak_mb: float


@dataclass(slots=True)
class _Worker:
    """A worker process, its CPU and peak memory read when it ends."""

    process: subprocess.Popen[str]
    usage: Any = field(default=None)

    def wait(self) -> None:
        """Raises EnvironmentFault where it did not end well."""
        assert self.process.stdout is not None
        said = self.process.stdout.read()
        _, status, self.usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode:
            raise EnvironmentFault(f"a worker failed ({self.process.returncode}): {said[-500:]}")


def measure(size: Size, *, databases: Sequence[str], seed: int, told: Callable[[str], None]) -> dict[str, Any]:
    """The figures, by database. Raises UsageError for one that is not here, EnvironmentFault for a run that broke."""
    found: dict[str, Any] = {}
    samples: dict[str, Any] = {}
    for database in databases:
        with ExitStack() as stack:
            site = _site(stack, database)
            told(f"{database}: warming up")
            few = _series(site, size.slots, FEW, workers=1)
            rounds = []
            for number in range(size.rounds):
                rounds.append(_series(site, size.slots, size.attempts, workers=1))
                told(f"{database}: round {number + 1}/{size.rounds}, {rounds[-1].per_s:.1f} attempts/s, "
                     f"{_each(few, rounds[-1])['all']:.1f} ms CPU each")
            found[database] = _figures(few, rounds)
            samples[database] = [round(one.per_s, 2) for one in rounds]
            if database == "postgresql" and size.waiting:
                found[database]["two_workers"] = _scaling(site, size, few, told)
            if size.queued:
                found[database]["queued"] = _weight(site, size.queued, told)
    return {**stamp(seed), "benchmark": "queue", "attempts": size.attempts, "slots": size.slots, "samples": samples,
            "load": [round(one, 2) for one in os.getloadavg()], "databases": found}


def _figures(few: Series, rounds: Sequence[Series]) -> dict[str, Any]:
    each = [_each(few, one) for one in rounds]
    return {
        "per_s": round(statistics.median(one.per_s for one in rounds), 2),
        "cpu_ms_per_attempt": {key: round(statistics.median(one[key] for one in each), 2) for key in each[0]},
        "worker_peak_mb": round(max(one.peak_mb for one in rounds), 1),
    }


def _each(few: Series, many: Series) -> dict[str, float]:
    """CPU milliseconds of an attempt beyond what few cost."""
    more = max(1, many.attempts - few.attempts)
    worker = 1000 * (many.worker_cpu_s - few.worker_cpu_s) / more
    server = 1000 * (many.server_cpu_s - few.server_cpu_s) / more
    return {"worker": worker, "server": server, "all": worker + server}


def _scaling(site: Site, size: Size, few: Series, told: Callable[[str], None]) -> dict[str, Any]:
    """Attempts that wait, at fixed slots a worker: two workers against one; and empty ones with two workers."""
    agent, rates = f"void:{size.wait_s}", {}
    for workers in (1, 2):
        rates[workers] = _series(site, size.waiting_slots, size.waiting, workers=workers, agent=agent).per_s
        told(f"postgresql: {workers} workers, attempts that wait {size.wait_s} s: {rates[workers]:.1f}/s")
    both = _series(site, size.slots, size.attempts, workers=2)
    return {"wait_s": size.wait_s, "slots": size.waiting_slots, "one_per_s": round(rates[1], 2),
            "two_per_s": round(rates[2], 2), "ratio": round(rates[2] / rates[1], 3),
            "empty_per_s": round(both.per_s, 2),
            "empty_cpu_ms": {key: round(value, 2) for key, value in _each(few, both).items()}}


def _weight(site: Site, queued: int, told: Callable[[str], None]) -> dict[str, Any]:
    """The memory of a worker while so many attempts wait, and of the process that submitted them."""
    before = _children_mb()
    run = site.submit("void:3600", queued)
    submitted = max(before, _children_mb())
    worker = _start(site, 2)
    peak = 0.0
    with Store(site.url, site.home) as store:
        while store.queue.depth().running < 2 and worker.process.poll() is None:
            time.sleep(0.1)
        for _ in range(30):
            peak = max(peak, resident_mb(worker.process.pid))
            time.sleep(0.1)
        ready = store.queue.depth().ready
    site.run("runs", "cancel", run, "--json")
    worker.wait()
    told(f"{ready} queued: the worker weighs {peak:.0f} MB, who submitted them {submitted:.0f} MB at most")
    return {"n": ready, "worker_mb": round(peak, 1), "submitting_mb": round(submitted, 1)}


def _series(site: Site, slots: int, attempts: int, *, workers: int, agent: str = "void") -> Series:
    run, server = site.submit(agent, attempts), site.cpu_s()
    at_work = [_start(site, slots) for _ in range(workers)]
    waits = [threading.Thread(target=worker.wait) for worker in at_work]
    for wait in waits:
        wait.start()
    for wait in waits:
        wait.join()
    spent = site.cpu_s() - server
    with Store(site.url, site.home) as store:
        done = store.attempts(run)
    if not all(one.outcome is not None and isinstance(one.outcome.verdict, Valid) for one in done):
        raise EnvironmentFault(f"not every attempt of {run} is done")
    starts = [one.started_at for one in done if one.started_at is not None]
    ends = [one.finished_at for one in done if one.finished_at is not None]
    seconds = (max(ends) - min(starts)).total_seconds()
    used = [worker.usage for worker in at_work]
    return Series(attempts, attempts / seconds, sum(one.ru_utime + one.ru_stime for one in used), spent,
                  max(one.ru_maxrss for one in used) / 1024)


def _start(site: Site, slots: int) -> _Worker:
    command = [sys.executable, "-m", "woodshed", "worker", "--slots", str(slots), "--until-empty", "--json"]
    worker = subprocess.Popen(command, env=site.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    bound(worker)
    return _Worker(worker)


def _site(stack: ExitStack, database: str) -> Site:
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="woodshed-bench-")))
    url, server = stack.enter_context(private_server()) if database == "postgresql" else (None, None)
    env = {**os.environ, **void.installed(scratch / "site", void.POINTS), "WOODSHED_HOME": str(scratch / "home")}
    env.pop("WOODSHED_DATABASE_URL", None)
    if url is not None:
        env["WOODSHED_DATABASE_URL"] = url
    (scratch / "home").mkdir(mode=0o700)
    return Site(scratch / "home", url, server, env, void.task(scratch / "task"))


def _cpu_s(pid: int, *, ended: bool = False) -> float:
    """User and system seconds of a process (proc_pid_stat(5)), or of its children that it has waited for."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(fields[index]) for index in ((13, 14) if ended else (11, 12))) / _TICK
    return 0.0


def resident_mb(pid: int) -> float:
    """What a process has in memory; 0 where there is none."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024
    return 0.0


def _children_mb() -> float:
    """The most that any child which has ended ever had (getrusage(2))."""
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
