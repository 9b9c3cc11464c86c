"""A folder of task folders, written whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from woodshed.errors import UsageError
from woodshed.tasks.write import Draft, write_task

Progress = Callable[[int, int | None, str], None]
"""Told (tasks done, tasks in all if known, what was just done)."""

Refused = Callable[[str, UsageError], None]
"""Hears of the name of a draft that makes no task, and why."""


def quiet(done: int, total: int | None, name: str) -> None:
    """The Progress that says nothing."""


def check_out(out: Path, force: bool) -> None:
    """``out`` may be written to: absent, an empty folder, or ``force``. Raises UsageError."""
    if out.exists() and not out.is_dir():
        raise UsageError("a file, not a folder", file=out, remedy="Choose another folder for the tasks.")
    if out.is_dir() and not force and any(out.iterdir()):
        raise UsageError("the folder is not empty", file=out, remedy="Choose another, or replace its tasks by --force.")


def write_collection(
    out: Path, drafts: Iterable[tuple[str, Draft]], *, total: int | None = None, force: bool = False,
    beside: bool = False, progress: Progress = quiet, refused: Refused | None = None,
) -> list[Path]:
    """The task folders made below ``out``, in order. Raises UsageError, and then leaves ``out`` as it was.

    With ``force`` a task folder of the same name is replaced and every other file of ``out`` is left alone; with
    ``beside`` ``out`` may hold other tasks. ``refused`` hears of a draft that makes no task, which is then left out,
    unless it raises.
    """
    out = out.expanduser().absolute()
    if not beside:
        check_out(out, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        names: dict[str, None] = {}
        for name, draft in drafts:
            if name in names:
                raise UsageError(f"two tasks of the name {name!r}", file=out, remedy="Give each its own.")
            check_place(out / name, force)
            try:
                write_task(staging / name, draft)
            except UsageError as error:
                if refused is None:
                    raise
                shutil.rmtree(staging / name, ignore_errors=True)
                refused(name, error)
                continue
            names[name] = None
            progress(len(names), total, name)
        out.mkdir(exist_ok=True)
        for name in names:
            _replace(staging / name, out / name)
        return [out / name for name in names]
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_place(place: Path, force: bool) -> None:
    """A task may be written at ``place``: nothing is there, or a task folder and ``force``. Raises UsageError."""
    if place.is_symlink() or (place.exists() and not (place / "task.toml").is_file()):
        raise UsageError("stands in the way and is no task folder", file=place, remedy="Move it away.")
    if place.exists() and not force:
        raise UsageError("exists already", file=place, remedy="Choose another folder, or replace it by --force.")


def _replace(new: Path, place: Path) -> None:
    if place.exists():
        shutil.rmtree(place)
    new.replace(place)
