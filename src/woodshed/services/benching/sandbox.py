"""``woodshed bench sandbox``: what sandboxes cost, beside the yardsticks of this machine, in one run."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed import plugins, settings
from woodshed.errors import EnvironmentFault, UsageError, WoodshedError
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.pool import Pool
from woodshed.services.benching import bubblewrap, density, egress, figures, oci, podman, raw, root
from woodshed.services.benching.left import Traces
from woodshed.services.benching.rounds import Quiet, Samples, quantile, take
from woodshed.services.benching.shed import RESERVE, Shed
from woodshed.services.benching.subject import CREATE, MEASURES, Missing, Subject
from woodshed.services.measured import stamp

Told = Callable[[str], None]
Find = Callable[[Path, Path], Subject]

YARDSTICKS: Mapping[str, Find] = {
    "raw": raw.raw, "bwrap": bubblewrap.bubblewrap, "crun": oci.crun, "runc": oci.runc, "podman": podman.podman,
}
_LIMITED = Limits(memory_mb=1024, cpus=1.0)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. ``idle`` and ``churn`` of 0 leave that part out; ``patience_s`` is spent on waiting for
    quiet. ``egress``: sandboxes that fetch by way of the proxy at once; None leaves out what a network costs."""

    samples: int = 60
    idle: int = 1000
    churn: int = 5000
    patience_s: float = 120.0
    egress: int | None = None


def chosen(names: Sequence[str] | None) -> tuple[str, ...]:
    """The yardsticks called ``names``, all by default. Raises UsageError for an unknown one."""
    for name in names or ():
        if name not in YARDSTICKS:
            raise UsageError(f"unknown yardstick '{name}'", remedy=f"Known: {', '.join(YARDSTICKS)}.")
    return tuple(names or YARDSTICKS)


async def measure(
    size: Size, *, engine: str, seed: int, told: Told, yardsticks: Sequence[str] = tuple(YARDSTICKS)
) -> dict[str, Any]:
    """The figures of ``engine`` and of the ``yardsticks`` that are found; docs/benchmarks.md explains each.

    Raises EnvironmentFault where the engine itself cannot make sandboxes, UsageError for an unknown engine.
    """
    home = settings.home()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=home, ignore_cleanup_errors=True) as place:
        scratch = Path(place)
        scratch.chmod(0o755)
        common = await asyncio.to_thread(root.make, scratch / "root")
        shed = _Engine(engine, scratch / "home", common)
        quiet, load = Quiet(size.patience_s), os.getloadavg()[0]
        async with _subjects(shed, common, scratch, yardsticks, told) as (subjects, not_found):
            taken = await take(subjects, samples=size.samples, seed=seed, quiet=quiet, told=told)
        rows = {subject.name: _row(subject, taken) for subject in subjects}
        if rows[engine][CREATE] is None:
            raise EnvironmentFault(f"{engine}: {subjects[0].why.get(CREATE, 'nothing was measured')}")
        many = await _many(shed, size, Quiet(size.patience_s / 4), told)
        many["egress"] = await _network(shed, size, Quiet(size.patience_s / 4), told)
        remains = await asyncio.to_thread(shed.traces.left)
    rows[engine] |= {"idle_mb": many["idle"] and many["idle"]["idle_mb"],
                     "churn_per_s": many["churn"] and many["churn"]["churn_per_s"]}
    found = figures.ratios(rows, engine)
    return {
        **stamp(seed), "benchmark": "sandbox", "engine": engine,
        "load": [round(value, 2) for value in (load, os.getloadavg()[0])], "engines": rows, "ratios": found,
        "targets": figures.targets(rows[engine], found, many["egress"]), "phases_ms": _phases(subjects), **many,
        "left": remains, "not_found": not_found, "samples": _samples(taken),
    }  # fmt: skip


class _Engine:
    """Makes instances of one engine on a state folder of their own, and their specs on the common root."""

    def __init__(self, name: str, home: Path, common: Path) -> None:
        self.name, self.home, self.traces = name, home, Traces(home)
        self._spec = EnvironmentSpec(image=f"dir:{common}")
        home.mkdir()

    def shed(self, limits: Limits | None = None, *, pool: Pool | None = None) -> Shed:
        """A live engine on the common root. Give it to :meth:`end`."""
        policy = SandboxPolicy(limits=limits or Limits())
        return Shed(plugins.engine(self.name, self.home), self._spec, policy, pool=pool)

    async def end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close one of them, and remember whose leftovers to look for."""
        await asyncio.to_thread(self.traces.note)
        await close()

    def subjects(self) -> list[Subject]:
        """As measured beside the yardsticks; with limits; and on the image that tasks have by default."""
        host = Shed(plugins.engine(self.name, settings.home()), EnvironmentSpec(), SandboxPolicy())
        pool = Pool(plugins.engine(self.name, self.home), warm=RESERVE)
        return [
            self.shed(pool=pool).subject(self.name, "the common root, default limits"),
            self.shed(_LIMITED).subject(f"{self.name}_limits", "and memory and CPU limits (cgroups)", whole=False),
            host.subject(f"{self.name}_host", "the host image with its Python layers", whole=False),
        ]


@asynccontextmanager
async def _subjects(
    shed: _Engine, common: Path, scratch: Path, yardsticks: Sequence[str], told: Told
) -> AsyncIterator[tuple[list[Subject], dict[str, str]]]:
    """All that can be measured here, closed in the end, and why the others cannot."""
    subjects, not_found = shed.subjects(), dict[str, str]()
    try:
        for name in yardsticks:
            try:
                subjects.append(await asyncio.to_thread(YARDSTICKS[name], common, scratch / name))
            except (Missing, OSError, subprocess.SubprocessError) as error:
                not_found[name] = str(error)
                told(f"{name}: {error}")
        told("measuring " + ", ".join(subject.name for subject in subjects))
        yield subjects, not_found
    finally:
        for subject in subjects:
            with suppress(WoodshedError):
                await shed.end(subject.close)


async def _many(shed: _Engine, size: Size, quiet: Quiet, told: Told) -> dict[str, Any]:
    """``idle`` and ``churn``, on engines of their own; None for what was not asked."""
    found: dict[str, Any] = {"idle": None, "churn": None}
    if size.idle:
        told(f"{size.idle} idle sandboxes")
        found["idle"] = await _apart(shed, quiet, lambda one: density.idle(one, size.idle))
    if size.churn:
        told(f"{size.churn} cycles on {density.WORKERS} workers")
        found["churn"] = await _apart(shed, quiet, lambda one: density.churn(one, size.churn))
    return found


async def _network(shed: _Engine, size: Size, quiet: Quiet, told: Told) -> dict[str, Any] | None:
    """``egress``, on the usual image and an engine of its own; None where it was not asked."""
    many = size.egress
    if many is None:
        return None
    told(f"egress, and {many} sandboxes that fetch at once")
    return await _apart(shed, quiet, lambda one: egress.measure(one.engine, samples=size.samples, many=many))


async def _apart(
    shed: _Engine, quiet: Quiet, measure: Callable[[Shed], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    """What ``measure`` finds on an engine of its own, begun when the machine is still, and whether it was."""
    measured = shed.shed()
    try:
        still = await quiet.wait()
        return await measure(measured) | {"quiet": still}
    finally:
        await shed.end(measured.close)


def _row(subject: Subject, taken: Mapping[tuple[str, str], Samples]) -> dict[str, Any]:
    row: dict[str, Any] = {"about": subject.about, "lacks": subject.lacks}
    for measure_name in MEASURES:
        samples = taken.get((subject.name, measure_name))
        row[measure_name] = samples.figures() if samples else None
        if samples is None:
            subject.why.setdefault(measure_name, "not measured for it")
    return row | {"idle_mb": None, "churn_per_s": None, "why": subject.why}


def _phases(subjects: Sequence[Subject]) -> dict[str, dict[str, dict[str, float]]]:
    """Where the time of create→true→destroy goes."""
    return {
        subject.name: {name: {"p50": round(statistics.median(values), 3), "p95": round(quantile(values, 0.95), 3)}
                       for name, values in subject.phases.items() if values}
        for subject in subjects if any(subject.phases.values())
    }  # fmt: skip


def _samples(taken: Mapping[tuple[str, str], Samples]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for (name, measure_name), samples in taken.items():
        found.setdefault(name, {})[measure_name] = [round(value, 3) for value in samples.values]
    return found
