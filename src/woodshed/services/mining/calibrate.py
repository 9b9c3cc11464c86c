"""The check of what was mined: one run over the kept folders, resumed where it was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from woodshed.model import Calibration, CheckSpec
from woodshed.services import runs
from woodshed.services.calibration import check, report
from woodshed.services.calibration.standing import standing
from woodshed.services.home import Home
from woodshed.tasks.load import find_tasks, load_task

Progress = Callable[[int, int | None, str], None]


async def calibrate(
    home: Home, folders: Sequence[Path], *, concurrency: int, engine: str, progress: Progress
) -> dict[Path, Calibration]:
    """Each folder's calibration, written beside it. Those with a current record are not checked again.

    A folder is missing where the check could say nothing of it. Raises what a run raises.
    """
    found: dict[Path, Calibration] = {}
    for folder in folders:
        if (record := standing(load_task(folder)).record) is not None:
            found[folder] = record
    if not (left := [folder for folder in folders if folder not in found]):
        return found
    tasks = find_tasks(left)
    spec = check.plan(tasks, CheckSpec(), concurrency=concurrency, seed=0, engine=engine)

    def told(tally: runs.Tally) -> None:
        progress(tally.done, tally.total, "calibrating")

    earlier = runs.resumable(home, spec)
    run = await (check.resume(home, earlier.id, told, concurrency=concurrency) if earlier is not None else
                 check.start(home, spec, tasks, told))
    judged = report.checked(home, run, tasks)
    report.write(judged)
    places = {folder.resolve(): folder for folder in left}
    return found | {places[one.folder]: one.record for one in judged if one.record is not None}
