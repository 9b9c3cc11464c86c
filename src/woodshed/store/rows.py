"""Rows: records as what stands in the tables, and back. A row that this version does not understand is named.

Records refuse unknown keys, also those that a newer Woodshed has written into a database that both use. Whoever reads
such a row hears which it is, which field, and what to do, as :class:`woodshed.errors.Unreadable`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from woodshed.errors import Unreadable
from woodshed.model import Attempt, Event, Outcome, Record, Run
from woodshed.model.grade import Regrade, Regraded
from woodshed.model.schedule import Firing, Schedule
from woodshed.store.text import dump, dump_data, stamp

R = TypeVar("R", bound=Record)
_DECLARED = ("trigger", "order", "missed", "overlap", "jitter_s", "grace_s", "most_failures")
_NEWER = frozenset({"extra_forbidden", "enum", "literal_error", "union_tag_invalid"})
"""What pydantic calls a key, or one of a fixed set of words, that it does not know."""


def record(
    kind: type[R], name: str, row: Mapping[Any, Any], *, texts: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> R:
    """The record that a row holds: ``texts`` are JSON, ``without`` are no fields of it. Raises Unreadable, by ``name``.
    """
    try:
        fields = {key: value for key, value in row.items() if key not in without}
        for key in texts:
            if fields[key] is not None:
                fields[key] = json.loads(fields[key])
        return kind.model_validate(fields)
    except ValueError as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: ValueError) -> Unreadable:
    """The fault in one sentence. No value of the row stands in it but a word of ours: rows hold what agents saw."""
    if not isinstance(error, ValidationError):
        return Unreadable(f"{name}: the row is damaged ({error}); restore the database from a backup")
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] not in _NEWER:
        return Unreadable(f"{name}: field '{field}' cannot be read here ({first['type']}): another version of Woodshed "
                          "wrote it, or it is damaged; update Woodshed")
    word = "" if first["type"] == "extra_forbidden" else f" has the value {str(first['input'])[:40]!r}, which"
    return Unreadable(f"{name}: field '{field}'{word} is unknown here: a newer Woodshed wrote it; update Woodshed")


# -- runs, attempts, events -------------------------------------------------------------------------------------------


def run_row(run: Run) -> dict[str, Any]:
    """The row of a run."""
    return {
        "id": run.id, "project": run.project, "spec": dump(run.spec), "state": run.state.value,
        "executor": run.executor, "created_at": stamp(run.created_at), "finished_at": _stamp(run.finished_at),
    }


def run(row: Mapping[Any, Any]) -> Run:
    """A run."""
    return record(Run, f"run {row['id']}", row, texts=("spec",))


def attempt_row(number: int, attempt: Attempt) -> dict[str, Any]:
    """The row of an attempt, the ``number``-th of its run."""
    return {
        "id": attempt.id, "run": attempt.run, "project": attempt.project, "number": number, "task": attempt.task,
        "agent": attempt.agent, "index": attempt.index, "seed": str(attempt.seed), "state": attempt.state.value,
        "executions": attempt.executions, "outcome": dump(attempt.outcome) if attempt.outcome else None,
        "started_at": _stamp(attempt.started_at), "finished_at": _stamp(attempt.finished_at),
    }


def attempt(row: Mapping[Any, Any]) -> Attempt:
    """An attempt, and its outcome if it has one."""
    return record(Attempt, f"attempt {row['id']}", row, texts=("outcome",), without=("number",))


def outcome(of: str, text: str) -> Outcome:
    """An outcome that stands alone."""
    try:
        return Outcome.model_validate_json(text)
    except ValueError as error:
        raise _unreadable(of, error) from None


def event_row(fact: Event) -> dict[str, Any]:
    """The row of an event, its data already text."""
    return {
        "attempt": fact.attempt, "execution": fact.execution, "seq": fact.seq, "version": fact.version,
        "kind": fact.kind.value, "at": stamp(fact.at), "data": dump_data(fact.data),
    }


def event(row: Mapping[Any, Any]) -> Event:
    """An event."""
    name = f"event {row['seq']} of {row['attempt']}, execution {row['execution']}"
    return record(Event, name, row, texts=("data",), without=("project",))


# -- regrades ---------------------------------------------------------------------------------------------------------


def regrade_row(regrade: Regrade) -> dict[str, Any]:
    """The row of a regrade."""
    return {
        "id": regrade.id, "run": regrade.run, "project": regrade.project, "rules": dump(regrade.rules),
        "created_at": stamp(regrade.created_at),
    }


def regrade(row: Mapping[Any, Any]) -> Regrade:
    """A regrade."""
    return record(Regrade, f"regrade {row['id']}", row, texts=("rules",))


def regraded_row(regrade: Regrade, verdict: Regraded) -> dict[str, Any]:
    """The row of what a regrade made of an attempt."""
    told = verdict.to_json()
    return {
        "regrade": regrade.id, "attempt": verdict.attempt, "project": regrade.project, "execution": verdict.execution,
        "verdict": dump(verdict.verdict), "components": json.dumps(told["components"], separators=(",", ":")),
    }


def regraded(row: Mapping[Any, Any]) -> Regraded:
    """What a regrade made of an attempt."""
    name = f"regrade {row['regrade']} of {row['attempt']}"
    return record(Regraded, name, row, texts=("verdict", "components"), without=("project",))


# -- schedules --------------------------------------------------------------------------------------------------------


def schedule_row(schedule: Schedule) -> dict[str, Any]:
    """The row of a schedule; what was declared is one JSON text."""
    declared = json.loads(dump(schedule))
    return {
        "id": schedule.id, "project": schedule.project, "name": schedule.name,
        "declared": json.dumps({key: declared[key] for key in _DECLARED}, separators=(",", ":")),
        "state": schedule.state.value, "reason": schedule.reason, "cursor": stamp(schedule.cursor),
        "failures": schedule.failures, "created_at": stamp(schedule.created_at),
    }


def schedule(row: Mapping[Any, Any]) -> Schedule:
    """A schedule."""
    name = f"schedule {row['name']}"
    try:
        declared = json.loads(row["declared"])
    except ValueError as error:
        raise _unreadable(name, error) from None
    return record(Schedule, name, {**row, **declared}, without=("declared",))


def firing_row(schedule: Schedule, firing: Firing) -> dict[str, Any]:
    """The row of a firing."""
    return {
        "schedule": schedule.id, "due": stamp(firing.due), "project": schedule.project, "by": firing.by,
        "state": firing.state.value, "count": firing.count, "reason": firing.reason, "run": firing.run,
        "since": _stamp(firing.since), "files": json.dumps(firing.to_json()["files"]),
        "created_at": stamp(firing.created_at), "settled_at": _stamp(firing.settled_at),
    }


def firing(row: Mapping[Any, Any]) -> Firing:
    """A firing."""
    return record(Firing, f"firing {row['due']} of schedule {row['schedule']}", row, texts=("files",),
                  without=("project",))


def _stamp(at: datetime | None) -> str | None:
    return None if at is None else stamp(at)
