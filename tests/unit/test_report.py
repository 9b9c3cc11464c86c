"""What is told of attempts, from what the store holds of them, however little that is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from woodshed.model import Agent, Assurance, Attempt, ChangeSet, EventKind, Outcome, Run, RunSpec, StopReason, Valid
from woodshed.model.event import now
from woodshed.services import report
from woodshed.services.exporting import Order, export
from woodshed.services.home import Home, opened
from woodshed.store import EventLog
from woodshed.store.text import MAX_EVENT_BYTES

OUTCOME = Outcome(verdict=Valid(rewards={}, total=0.0, assurance=Assurance.CANARY), stop=StopReason.FINISHED)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home with a run of one attempt that has not begun."""
    with opened(tmp_path / "home") as place:
        spec = RunSpec(tasks=("/t",), agents=(Agent(name="nop", harness="nop"),))
        place.store.create_run(
            Run(id="r-1", spec=spec, created_at=now()),
            [Attempt(id="r-1.1", run="r-1", task="t", agent="nop", index=0, seed=0)],
        )
        yield place


def begun(home: Home) -> EventLog:
    return EventLog(home.store, "r-1.1", home.store.begin_execution("r-1.1", "h-1") or 0)


def test_an_attempt_that_has_not_begun_has_a_trace(home: Home) -> None:
    """Before its first event an attempt is told without steps, verdict and diff."""
    for _ in range(2):
        told = report.trace(home, "r-1.1")
        assert (told["steps"], told["verdict"], told["diff"]) == ([], None, "")
        begun(home)


def test_events_too_large_to_be_kept_are_told_as_such(home: Home) -> None:
    """A call or a change set beyond an event's bound leaves its size alone; the rest of the trace stands."""
    log = begun(home)
    log.emit(EventKind.MESSAGE, {"role": "user", "content": "Mend it."})
    log.emit(EventKind.TOOL_CALL, {"call": "c1", "name": "bash", "arguments": {"command": "x" * MAX_EVENT_BYTES}})
    log.emit(EventKind.CHANGES, {**ChangeSet().to_json(), "refused": ["x" * MAX_EVENT_BYTES]})
    assert log.finish(OUTCOME)
    told = report.trace(home, "r-1.1")
    assert [step["message"] for step in told["steps"]] == ["Mend it."]
    assert told["refused"] == ["more changes than an event can hold"]


def test_an_empty_change_set_refuses_nothing(home: Home) -> None:
    """An attempt that changed nothing has an empty diff and no remark."""
    log = begun(home)
    log.emit(EventKind.CHANGES, ChangeSet().to_json())
    assert log.finish(OUTCOME)
    told = report.trace(home, "r-1.1")
    assert (told["diff"], told["refused"]) == ("", [])


def test_an_export_is_utf_8_whatever_was_said(home: Home, tmp_path: Path) -> None:
    """Half a surrogate pair, as of a name that is no Unicode, becomes a question mark; the rest stands as written."""
    log = begun(home)
    log.emit(EventKind.MESSAGE, {"role": "user", "content": "木 \udcff"})
    assert log.finish(OUTCOME)
    [file, *_] = export(home, [home.store.run("r-1")], Order("atif", tmp_path / "out")).files
    assert json.loads(file.read_bytes().decode("utf-8"))["steps"][0]["message"] == "木 ?"
