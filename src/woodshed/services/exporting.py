"""Exports: a run's finished attempts in others' formats."""

from __future__ import annotations

import json
from pathlib import Path

from woodshed.errors import UsageError
from woodshed.measure.trajectory import from_events
from woodshed.model import Run
from woodshed.services.history import history
from woodshed.services.home import Home
from woodshed.trainers.atif import to_atif

FORMATS = ("atif",)


def export(home: Home, run: Run, form: str, folder: Path) -> list[Path]:
    """One ATIF 1.8 file for each finished attempt, named by its id; the files written.

    Raises UsageError for an unknown format or a folder that cannot be made.
    """
    if form not in FORMATS:
        raise UsageError(f"unknown format '{form}'", field="--format", remedy=f"Known: {', '.join(FORMATS)}.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot be made: {error.strerror}", file=folder, field="--out", remedy="Choose another."
        ) from error
    models = {agent.name: agent.model.name if agent.model else None for agent in run.spec.agents}
    files = []
    for attempt in home.store.attempts(run.id):
        if attempt.outcome is None:
            continue
        events = history(home, attempt)
        trajectory = from_events(events, task=attempt.task, agent=attempt.agent, model=models[attempt.agent])
        path = folder / f"{attempt.id}.json"
        document = to_atif(trajectory, attempt.outcome.verdict, run=run.id)
        # UTF-8 whatever the locale; half surrogate pairs (of names that are no Unicode) become question marks.
        path.write_bytes((json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "replace"))
        files.append(path)
    return files
