"""What a check came to: a record for each task, written beside it, and rows for tables and programs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import woodshed.verify
from woodshed.errors import UsageError
from woodshed.model import Attempt, Calibration, Label, Run, Task
from woodshed.model.calibration import Measured
from woodshed.model.event import now
from woodshed.services.calibration import check, evidence, variants
from woodshed.services.calibration.ruling import (
    Evidence,
    Judged,
    Try,
    flake_rates,
    limit_warnings,
    p95,
    rule,
    strength,
    survivors,
    tries,
)
from woodshed.services.home import Home
from woodshed.tasks.calibrated import write_calibration
from woodshed.tasks.folder import HistoryLeft, digest
from woodshed.tasks.load import find_tasks, load_task, task_folders
from woodshed.verify import JUDGING
from woodshed.verify.strength import Kind
from woodshed.version import __version__

_KEPT_SURVIVORS, _KEPT_CHARS = 20, 4_000
_PUBLISHED = 3
_SAMPLED = ("task", "label", "reasons", "warnings", "strength", "killed", "variants", "flake_rate", "nop", "reference",
            "act_s", "verify_s", "memory_mb", "assurance", "image_digest", "verifier_version")


@dataclass(frozen=True, slots=True)
class Checked:
    """One task after a check. ``record`` is None where the check broke before anything could be said; ``why`` then."""

    task: str
    folder: Path
    record: Calibration | None
    why: str = ""

    def row(self) -> dict[str, Any]:
        """Flat JSON: ``task``, ``label``, ``strength``, ``flake_rate``, ``survivors`` and the figures of the record."""
        record = self.record
        if record is None:
            return {"task": self.task, "folder": str(self.folder), "label": None, "reasons": [self.why],
                    "strength": None, "flake_rate": None, "survivors": []}
        data = record.to_json()
        for name in ("version", "seal", "woodshed", "flake_rates"):
            del data[name]
        flaky = {name: rate for name, rate in record.flake_rates.items() if rate}
        return {"task": self.task, "folder": str(self.folder), **data, "flaky_tests": flaky}


def checked(home: Home, run: Run, tasks: Sequence[Task]) -> list[Checked]:
    """What ``run`` found out about each of its tasks. Writes nothing."""
    attempts = evidence.by_task(home.store.attempts(run.id))
    return [_checked(home, run, task, attempts.get(task.id, [])) for task in tasks]


def refused(folder: Path, reason: str) -> Checked:
    """A task that is not even loaded, because its workspace holds version control's history: it leaks."""
    record = Calibration(
        task=folder.name, digest=digest(folder), image="", image_digest="", verifier=check.VERIFIER,
        verifier_version=JUDGING, verifier_digest=verifier_digest(), engine="", woodshed=__version__, run=None,
        at=now(), label=Label.LEAKS_SOLUTION, reasons=(reason,),
    )  # fmt: skip
    return Checked(folder.name, folder, record)


def to_check(paths: Sequence[Path]) -> tuple[list[Task], list[Checked]]:
    """The tasks of ``paths`` that can be attempted, and those whose history alone tells what they are worth.

    Raises UsageError as :func:`woodshed.tasks.load.find_tasks` does for everything else that is wrong.
    """
    sound: list[Path] = []
    leaking: list[Checked] = []
    for folder in dict.fromkeys(folder for path in paths for folder in task_folders(path)):
        try:
            load_task(folder)
        except HistoryLeft as error:
            leaking.append(refused(folder, error.message))
        else:
            sound.append(folder)
    return find_tasks(sound) if sound else [], leaking


def figures(found: Sequence[Checked], run: Run | None) -> dict[str, Any]:
    """What is published of a check: counts, a few survivors to look at, and a sample of each task without patches.

    ``run_s`` is from the run's beginning to its end, also where it is told of later. Survivors are those of the weakest
    tasks, fixes that only look like one before mutants.
    """
    rows = [one.row() for one in found]
    weakest = sorted((row for row in rows if row["survivors"]), key=lambda row: row["strength"])
    shown = [min(row["survivors"], key=lambda one: one["kind"] != Kind.SUPERFICIAL) for row in weakest[:_PUBLISHED]]
    strengths = [row["strength"] for row in rows if row["strength"] is not None]
    return {
        "tasks": len(rows),
        "attempts": sum(row[kind]["valid"] + row[kind]["invalid"] for row in rows if row["label"]
                        for kind in ("nop", "reference")) + sum(row.get("variants", 0) for row in rows)
        + sum(len(row.get("cheats", ())) for row in rows),
        "variants": sum(row.get("variants", 0) for row in rows),
        "killed": sum(row.get("killed", 0) for row in rows),
        "mean_strength": round(sum(strengths) / len(strengths), 4) if strengths else None,
        "accept_superficial": sum(any(one["kind"] == Kind.SUPERFICIAL for one in row["survivors"]) for row in rows),
        "cheats_tried": sum(len(row.get("cheats", ())) for row in rows),
        "cheats_rewarded": sum(sum(row.get("cheats", {}).values()) for row in rows),
        "run_s": round((run.finished_at - run.created_at).total_seconds(), 1) if run and run.finished_at else None,
        "survivors": [{"task": row["task"], **one} for row, one in zip(weakest, shown, strict=False)],
        "samples": [
            {**{name: row[name] for name in _SAMPLED if name in row},
             "survivors": [survivor["name"] for survivor in row["survivors"]]}
            for row in rows
        ],
    }  # fmt: skip


def write(found: Iterable[Checked]) -> list[str]:
    """Sign off every record beside its task; what could not be written, a sentence each."""
    failed = []
    for one in found:
        if one.record is not None:
            try:
                write_calibration(one.folder, one.record)
            except UsageError as error:
                failed.append(str(error))
    return failed


def _checked(home: Home, run: Run, task: Task, attempts: Sequence[Attempt]) -> Checked:
    findings = variants.kept(home, run.id, task) or variants.Findings()
    found = _evidence(home, task, attempts, findings)
    ruling = rule(found)
    if ruling.label is None:
        return Checked(task.id, task.folder, None, ruling.reasons[0])
    killed, judged, share = strength(found)
    act, verify, memory = _figures(task, found)
    rates = flake_rates(found.reference)
    verdicts = [one.valid for one in (*found.reference, *found.nop) if one.valid is not None]
    tight = limit_warnings((act.measured, task.agent_timeout_s), (verify.measured, task.verifier.timeout_s),
                           (memory.measured, memory.declared))
    unexplored = (findings.unexplored,) if findings.unexplored else ()
    record = Calibration(
        task=task.id, digest=task.digest, image=task.environment.image,
        image_digest=verdicts[0].image_digest if verdicts else "", verifier=run.spec.verifier, verifier_version=JUDGING,
        verifier_digest=verifier_digest(), engine=run.spec.engine, woodshed=__version__, run=run.id, at=now(),
        label=ruling.label, reasons=ruling.reasons, warnings=(*ruling.warnings, *tight, *unexplored),
        assurance=verdicts[0].assurance if verdicts else None, nop=tries(found.nop), reference=tries(found.reference),
        cheats={name: one.passed for name, one in found.cheats.items() if one.valid is not None},
        strength=share, killed=killed, variants=judged,
        survivors=tuple(one.model_copy(update={"patch": one.patch[:_KEPT_CHARS]})
                        for one in survivors(found)[:_KEPT_SURVIVORS]),
        flake_rate=max(rates.values(), default=None), flake_rates=rates, act_s=act, verify_s=verify, memory_mb=memory,
    )  # fmt: skip
    return Checked(task.id, task.folder, record)


def _evidence(home: Home, task: Task, attempts: Sequence[Attempt], findings: variants.Findings) -> Evidence:
    nop: list[Try] = []
    reference: list[Try] = []
    cheats: dict[str, Try] = {}
    judged: list[Judged] = []
    for attempt in attempts:
        one = evidence.tried(home, attempt)
        if attempt.agent == check.NOP:
            nop.append(one)
        elif attempt.agent == check.ORACLE:
            reference.append(one)
        elif attempt.agent == check.VARIANT:
            if attempt.index >= len(findings.variations):  # what they were was kept in a file of the run, and is gone
                continue
            judged.append(Judged(findings.variations[attempt.index].survivor, one))
        else:
            cheats[attempt.agent] = one
    return Evidence(task.solution is not None, nop, reference, cheats, judged, findings.leaks)


def _figures(task: Task, found: Evidence) -> tuple[Measured, Measured, Measured]:
    """(act, verify, memory) of the reference where it passed, beside what is declared."""
    passed = [one for one in found.reference if one.passed]
    act = p95([one.act_s for one in passed])
    verify = p95([one.verify_s for one in passed if one.verify_s is not None])
    memory = max((one.memory_bytes for one in passed if one.memory_bytes is not None), default=None)
    return (
        Measured(measured=_rounded(act), declared=task.agent_timeout_s),
        Measured(measured=_rounded(verify), declared=task.verifier.timeout_s),
        Measured(measured=None if memory is None else round(memory / 2**20, 1),
                 declared=task.environment.limits.memory_mb),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


@cache
def verifier_digest() -> str:
    """sha256 over the source files of the verifier: a fact for the record. What makes it current is ``JUDGING``."""
    total = hashlib.sha256()
    folder = Path(woodshed.verify.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        total.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
