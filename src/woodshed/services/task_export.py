"""Exports of tasks: our folders as those of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from woodshed.errors import UsageError
from woodshed.tasks.export import Exported, export_harbor
from woodshed.tasks.load import task_folders

FORMATS = ("harbor",)


def export_tasks(
    paths: Sequence[Path], to: Path, *, form: str, force: bool, progress: Callable[[int, int | None, str], None]
) -> list[Exported]:
    """Every task of ``paths`` as a folder below ``to``, in order. Raises UsageError."""
    if form not in FORMATS:
        raise UsageError(f"unknown format '{form}'", field="--format", remedy=f"Known: {', '.join(FORMATS)}.")
    folders = list(dict.fromkeys(folder for path in paths for folder in task_folders(path)))
    made = []
    for count, folder in enumerate(folders, start=1):
        made.append(export_harbor(folder, to, force=force))
        progress(count, len(folders), folder.name)
    return made
