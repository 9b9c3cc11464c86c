"""What the gateway adds to a call: time, CPU, memory of many slow streams; beside a bare proxy, and LiteLLM's.

All in one run, by turns, in front of one upstream that answers at once. What is measured has a core to itself, where
there are several; upstream and load have the others. A request of the gateway counts once its row is found in the
store, whole and without a flaw, after its process was killed the moment the last answer had come: so nothing that came
later than an answer is counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from woodshed.errors import EnvironmentFault, UsageError
from woodshed.model.rollout import CaptureLevel
from woodshed.services.benching import litellm
from woodshed.services.benching.lanes import Target, loaded, timed
from woodshed.services.benching.queue import resident_mb
from woodshed.services.benching.rounds import quantile
from woodshed.services.benching.served import RUN
from woodshed.services.home import opened
from woodshed.services.measured import stamp
from woodshed.trainers.records import calls_of

_TICK = os.sysconf("SC_CLK_TCK")
_OF_AN_ATTEMPT = 20
"""Streams of one attempt at once."""
_WARMING, _LOOK_S, _PATIENCE_S = 30, 0.1, 300.0
_FDS_SPARE = 512
_FDS_EACH = 8
"""A process gives one in so many descriptors to connections of sandboxes (``sandbox/egress/seats.py``)."""
Tell = Callable[[str], None]
# A proxy that does nothing but pass on, by the library and the loop that the gateway has; prints where it is.
_BARE = """
import asyncio, json, sys
import aiohttp, uvloop
from aiohttp import web
async def main():
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        async def passed(request):
            kind = {"Content-Type": "application/json"}
            url = sys.argv[1] + request.path.removeprefix("/v1")
            async with session.post(url, data=await request.read(), headers=kind) as answer:
                return web.Response(status=answer.status, body=await answer.read(), headers=kind)
        server = await asyncio.get_running_loop().create_server(web.Server(passed, access_log=None), "127.0.0.1", 0)
        print(json.dumps([[f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", ""]]), flush=True)
        await asyncio.Event().wait()
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""
_GATEWAY = ("-m", "woodshed.services.benching.served")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: ``samples`` of each subject's latency and ``requests`` under load, in each round.

    ``lanes`` ask at once, each for an attempt of its own; ``streams`` wait at once, ``hold_s`` after all are there.
    """

    samples: int = 100
    rounds: int = 5
    requests: int = 4000
    lanes: int = 64
    streams: int = 2000
    hold_s: int = 12


@dataclass(frozen=True, slots=True)
class Subject:
    """What requests go through. Without a process it is nothing: the upstream itself."""

    name: str
    targets: Sequence[Target]
    pid: int | None = None


def measure(size: Size, *, python: str | None, seed: int, told: Tell) -> dict[str, Any]:
    """The figures. ``python`` has ``litellm[proxy]``, or is ``install``; None: that part is left out.

    Raises UsageError, EnvironmentFault.
    """
    with tempfile.TemporaryDirectory(prefix="woodshed-bench-") as place, _cores() as (one, others):
        found, missing = litellm.found(python, Path(place), told)
        bench = _Bench(size, Path(place), one, others, random.Random(seed), told)  # noqa: S311 (an order, no secret)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures = runner.run(bench.run(found))
    return {**stamp(seed), "benchmark": "gateway", "size": {name: getattr(size, name) for name in size.__slots__},
            "load": [round(load, 2) for load in os.getloadavg()], "own_core": one != others,
            "litellm": found.version if found else None, "not_found": missing, **figures,
            "targets": targets(figures)}


def targets(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """Each aim with its value and ``met``: None where it was not measured."""
    streams = figures["streams"]
    rows: list[tuple[str, float | None, str, float]] = [
        ("added_p50_ms", figures["added_p50_ms"], "at_most", 2.0),
        ("requests_per_s", figures["requests_per_s"], "at_least", 500.0),
        ("litellm_ratio", figures["litellm_ratio"], "at_least", 5.0),
        ("streams_mb", streams["process_mb"] if streams else None, "at_most", 400.0),
        ("not_durable", figures["durable"]["answered"] - figures["durable"]["rows"], "at_most", 0)]
    return [{"name": name, "value": value, how: bound,
             "met": None if value is None else value <= bound if how == "at_most" else value >= bound}
            for name, value, how, bound in rows]


@dataclass(slots=True)
class _Bench:
    size: Size
    place: Path
    one: frozenset[int]
    others: frozenset[int]
    chance: random.Random
    told: Tell
    answered: int = 0

    async def run(self, found: litellm.Found | None) -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            upstream = f"http://127.0.0.1:{await stack.enter_async_context(self._instant())}/v1"
            home, gate = self.place / "home", None
            subjects = [Subject("direct", [Target(upstream)])]
            for name, words in (("bare", ["-c", _BARE, upstream]),
                                ("gateway", [*_GATEWAY, upstream, str(self.size.lanes)])):
                process, targets_ = await stack.enter_async_context(self._served(words, home))
                gate = process if name == "gateway" else gate
                subjects.append(Subject(name, targets_, process.pid))
            if found is not None:
                subjects.append(await stack.enter_async_context(self._litellm(found, upstream)))
            latency, load = await self._latency(subjects), await self._load(subjects[1:])
            assert gate is not None
            gate.kill()
            await gate.wait()
        durable = {"answered": self.answered, "rows": rows_of(home)}
        return self._figures(latency, load, durable) | {
            "streams": await self._streams() if self.size.streams else None}

    def _figures(
        self, latency: dict[str, list[float]], load: dict[str, list[dict[str, float]]], durable: dict[str, int]
    ) -> dict[str, Any]:
        share = min(1.0, durable["rows"] / durable["answered"]) if durable["answered"] else 0.0
        rates = {name: statistics.median(one["per_s"] for one in rounds) for name, rounds in load.items()}
        per_s = rates["gateway"] * share
        p50 = {name: statistics.median(values) for name, values in latency.items()}
        return {
            "added_p50_ms": round(p50["gateway"] - p50["direct"], 3),
            "bare_added_p50_ms": round(p50["bare"] - p50["direct"], 3),
            "litellm_added_p50_ms": round(p50["litellm"] - p50["direct"], 3) if "litellm" in p50 else None,
            "requests_per_s": round(per_s, 1),
            "litellm_ratio": round(per_s / rates["litellm"], 2) if rates.get("litellm") else None,
            "bare_ratio": round(per_s / rates["bare"], 3),
            "latency_ms": {name: {"p50": round(p50[name], 3), "p95": round(quantile(values, 0.95), 3),
                                  "n": len(values)} for name, values in latency.items()},
            "under_load": {name: {"requests_per_s": round(rates[name], 1), "cpu_ms": round(
                statistics.median(one["cpu_ms"] for one in rounds), 3)} for name, rounds in load.items()},
            "durable": durable,
            "samples": {"latency_ms": {name: [round(value, 3) for value in values] for name, values in latency.items()},
                        "requests_per_s": {name: [round(one["per_s"], 1) for one in rounds]
                                           for name, rounds in load.items()}},
        }

    async def _latency(self, subjects: Sequence[Subject]) -> dict[str, list[float]]:
        """Milliseconds of requests one after another, in rounds, each with an order of its own."""
        taken: dict[str, list[float]] = {subject.name: [] for subject in subjects}
        for number in range(self.size.rounds + 1):
            for subject in self.chance.sample(list(subjects), len(subjects)):
                samples = self.size.samples if number else _WARMING
                found = await timed(subject.targets[0], samples)
                taken[subject.name] += found if number else []
                self._count(subject, samples + 1)
            if number:
                self.told(f"round {number}/{self.size.rounds}: " + ", ".join(
                    f"{name} {statistics.median(values):.2f} ms" for name, values in taken.items()))
        return taken

    async def _load(self, subjects: Sequence[Subject]) -> dict[str, list[dict[str, float]]]:
        """Requests a second and CPU of each, at as many at once as there are lanes. The slow do fewer of them."""
        taken: dict[str, list[dict[str, float]]] = {subject.name: [] for subject in subjects}
        for number in range(self.size.rounds):
            for subject in self.chance.sample(list(subjects), len(subjects)):
                total = self.size.requests if subject.name != "litellm" else max(64, self.size.requests // 8)
                assert subject.pid is not None
                before = _cpu_s(subject.pid)
                seconds = await loaded(subject.targets, self.size.lanes, total)
                taken[subject.name].append({"per_s": total / seconds,
                                            "cpu_ms": 1000 * (_cpu_s(subject.pid) - before) / total})
                self._count(subject, total)
            self.told(f"round {number + 1}/{self.size.rounds}: " + ", ".join(
                f"{name} {rounds[-1]['per_s']:.0f}/s" for name, rounds in taken.items()))
        return taken

    async def _streams(self) -> dict[str, Any]:
        """Memory of a fresh gateway while so many streams wait, all of them begun; and what of them is durable."""
        count, home = self.size.streams, self.place / "streams"
        _files_for(_FDS_EACH * count)
        self.told(f"{count} streams that wait {self.size.hold_s} s")
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(self._instant(str(count), str(self.size.hold_s)))
            words = [*_GATEWAY, f"http://127.0.0.1:{port}/v1", str(-(-count // _OF_AN_ATTEMPT))]
            process, targets_ = await stack.enter_async_context(self._served(words, home))
            before, peak = resident_mb(process.pid), asyncio.ensure_future(_peak(process.pid))
            async with asyncio.timeout(_PATIENCE_S):
                seconds = await loaded(targets_, count, count, stream=True)
            process.kill()
            peak.cancel()
            resident, shared = await peak
            await process.wait()
        return {"n": count, "hold_s": self.size.hold_s, "seconds": round(seconds, 1), "process_mb": round(resident, 1),
                "pss_mb": round(shared, 1), "grown_mb": round(resident - before, 1), "rows": rows_of(home)}

    def _count(self, subject: Subject, answered: int) -> None:
        self.answered += answered if subject.name == "gateway" else 0

    # -- processes -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _instant(self, *words: str) -> AsyncIterator[int]:
        argv = (sys.executable, "-m", "woodshed.services.benching.instant", *words)
        async with _started(argv, self.others) as process:
            yield int(await _line(process))

    @asynccontextmanager
    async def _served(
        self, words: Sequence[str], home: Path
    ) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[Target]]]:
        argv = (sys.executable, *words)
        env = {name: value for name, value in os.environ.items() if name != "WOODSHED_DATABASE_URL"}
        async with _started(argv, self.one, env | {"WOODSHED_HOME": str(home)}) as process:
            yield process, [Target(url, key) for url, key in json.loads(await _line(process))]

    @asynccontextmanager
    async def _litellm(self, found: litellm.Found, upstream: str) -> AsyncIterator[Subject]:
        argv, target, env = litellm.command(found, upstream, self.place)
        self.told(f"starting LiteLLM {found.version}")
        log = self.place / "litellm.log"
        async with _started(argv, self.one, env, log) as process:
            await litellm.ready(target, process, log)
            yield Subject("litellm", [target], process.pid)


def rows_of(home: Path) -> int:
    """Calls of the benchmark's run that a trainer may rely on: with token ids and logprobs, and without a flaw."""
    with opened(home) as shed:
        def blob(sha256: str) -> bytes:
            with shed.blobs.open(sha256) as file:
                return file.read()

        found = [calls_of(shed.store.events(one.id), blob) for one in shed.store.attempts(RUN)]
    return sum(record.capture_level is CaptureLevel.LOGPROBS and not record.flaws
               for calls in found for record in calls.records)


@contextmanager
def _cores() -> Any:
    """A core for what is measured, and the others for all else, this process too; the same where there is but one."""
    all_ = os.sched_getaffinity(0)
    one = frozenset([min(all_)])
    others = frozenset(all_ - one) or one
    os.sched_setaffinity(0, others)
    try:
        yield one, others
    finally:
        os.sched_setaffinity(0, all_)


@asynccontextmanager
async def _started(
    argv: Sequence[str], cores: frozenset[int], env: dict[str, str] | None = None, log: Path | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process on these cores, ended at the end. What it says goes to ``log``; without one, its output to here."""
    pinned = "import os, sys; os.sched_setaffinity(0, eval(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
    with (log or Path(os.devnull)).open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", pinned, str(set(cores)), *argv, env=env, stdin=subprocess.DEVNULL,
            stdout=said if log else subprocess.PIPE, stderr=said)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise EnvironmentFault(f"a process of the benchmark ended before it was ready ({await process.wait()})")
    return line.decode()


async def _peak(pid: int) -> tuple[float, float]:
    """The most that a process had in memory until this is cancelled, resident and proportional, MiB."""
    resident = shared = 0.0
    try:
        while True:
            resident, shared = max(resident, resident_mb(pid)), max(shared, _proportional_mb(pid))
            await asyncio.sleep(_LOOK_S)
    except asyncio.CancelledError:
        return resident, shared


def _proportional_mb(pid: int) -> float:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return 0.0


def _cpu_s(pid: int) -> float:
    """User and system seconds of a process and of its threads (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _files_for(count: int) -> None:
    """Raise the limit on open files as far as is needed, for processes started from here too. Raises UsageError."""
    needed = count + _FDS_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise UsageError(f"{count // _FDS_EACH} streams need {needed} open files, and {hard} are allowed",
                             remedy="Raise it (ulimit -Hn), or ask for fewer with --streams.")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
