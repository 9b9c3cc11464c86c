"""How tasks stand before a run: calibrated and current, or not; and which are left out of it, or refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from woodshed.errors import UsageError
from woodshed.model import Calibration, Label, Task
from woodshed.model.counted import counted
from woodshed.tasks.calibrated import read_calibration
from woodshed.verify import JUDGING

_NAMED = 3
_REMEDY = "Say: woodshed tasks check PATH"


@dataclass(frozen=True, slots=True)
class Standing:
    """``record`` is the task's calibration where it is current; else ``missing`` says why there is none."""

    record: Calibration | None = None
    missing: str = ""

    @property
    def label(self) -> Label | None:
        """The current record's label."""
        return self.record.label if self.record else None

    @property
    def quarantine(self) -> str | None:
        """Why the task is not run unasked; None where it is."""
        if self.record is None or not self.record.label.quarantined:
            return None
        return f"{self.record.label}: {'; '.join(self.record.reasons)}" if self.record.reasons else self.record.label


def standing(task: Task) -> Standing:
    """How ``task`` stands. A record is current for this very content of its folder and the present way of judging.

    Of the image only its name can be compared here: its digest is known once it is prepared, and then stands in every
    verdict.
    """
    record = read_calibration(task.folder)
    if record is None:
        return Standing(missing="never checked")
    if record.digest != task.digest:
        return Standing(missing="changed since it was checked")
    if record.verifier_version != JUDGING:
        return Standing(missing="checked by an older way of judging")
    return Standing(record)


def admitted(
    tasks: Sequence[Task], *, strict: bool, quarantined: bool, tell: Callable[[str], None]
) -> list[Task]:
    """The tasks to run. ``tell`` hears, in one line each, of those without a current record and of those left out.

    With ``quarantined`` none is left out. With ``strict`` both are refused: raises UsageError, as for nothing left.
    """
    stands = {task.id: standing(task) for task in tasks}
    unknown = [task for task in tasks if stands[task.id].record is None]
    out = [task for task in tasks if stands[task.id].quarantine and not quarantined]
    if strict and unknown:
        raise UsageError(f"{counted(len(unknown), 'task')} without a current calibration: {_names(unknown)} "
                         f"({stands[unknown[0].id].missing})", remedy=_REMEDY)
    if out and (strict or len(out) == len(tasks)):
        raise UsageError(f"{counted(len(out), 'task')} in quarantine: {_names(out)} ({stands[out[0].id].quarantine})",
                         remedy="Mend and check again, or say --quarantined to run all the same.")
    if unknown:
        tell(f"{len(unknown)} of {counted(len(tasks), 'task')} without a current calibration (woodshed tasks check "
             "says what their verdicts are worth)")
    if out:
        tell(f"{counted(len(out), 'task')} left out, in quarantine: {_names(out)} ({stands[out[0].id].quarantine}); "
             "--quarantined runs them")
    return [task for task in tasks if task not in out]


def _names(tasks: Sequence[Task]) -> str:
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    return ", ".join(task.id for task in tasks[:_NAMED]) + more
