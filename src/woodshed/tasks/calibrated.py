"""The calibration record beside a task: ``calibration.json``, which the task's digest leaves out."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from woodshed.errors import UsageError
from woodshed.model import Calibration

FILE = "calibration.json"
MAX_BYTES = 20_000_000


def read_calibration(folder: Path) -> Calibration | None:
    """The record beside the task in ``folder``; None where there is none, or none that can be believed.

    A record of another version, with unknown keys, or whose seal is not that of the rest is none: the remedy for all of
    them is another check. Never raises for what stands in the file.
    """
    file = folder / FILE
    try:
        if file.is_symlink() or not file.is_file() or file.stat().st_size > MAX_BYTES:
            return None
        record = Calibration.model_validate(json.loads(file.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None
    return record if record.intact else None


def write_calibration(folder: Path, record: Calibration) -> Path:
    """Put ``record``, sealed, beside the task, in one piece; the file. Raises UsageError where that cannot be."""
    file = folder / FILE
    text = json.dumps(record.sealed().to_json(), indent=1, ensure_ascii=True) + "\n"
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{FILE}.")
        try:
            with os.fdopen(handle, "w") as out:
                out.write(text)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(file)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"the record cannot be written: {error.strerror}", file=file,
                         remedy="Make the task's folder writable, or say --no-write.") from None
    return file
