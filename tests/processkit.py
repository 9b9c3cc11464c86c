"""Hand-made attempts for tests of process measures: events in, a card out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from woodshed.measure.process import Facts, card
from woodshed.model import Assurance, Change, ChangeKind, ChangeSet, Event, EventKind, StopReason, Usage, Valid
from woodshed.model.grade import FilePatch, Patch
from woodshed.model.process import Card, Measure

START = datetime(2026, 1, 1, tzinfo=UTC)
Fact = tuple[EventKind, dict[str, Any]]


def says(content: str, tokens: int = 10) -> list[Fact]:
    """A turn of the model; calls that follow belong to it."""
    return [(EventKind.MODEL_RESULT, {"content": content, "usage": {"prompt_tokens": tokens, "completion_tokens": 1}})]


def calls(name: str, *, exit_code: int | None = 0, content: str = "", error: str | None = None, tokens: int = 10,
          **arguments: Any) -> list[Fact]:
    """A turn that makes one call, and what came of it."""
    made: dict[str, Any] = {"name": name, "arguments": arguments}
    if error is not None:
        made |= {"error": error, "raw": "{"}
    return [*says("", tokens), (EventKind.TOOL_CALL, made),
            (EventKind.TOOL_RESULT, {"content": content, "exit_code": exit_code})]


def bash(command: str, exit_code: int = 0, content: str = "", tokens: int = 10) -> list[Fact]:
    return calls("bash", exit_code=exit_code, content=content, tokens=tokens, command=command)


def hears(said: str, **expects: Any) -> list[Fact]:
    return [(EventKind.FEEDBACK, {"said": said, "step": 0, "expects": expects or None})]


def refused(host: str) -> Fact:
    return EventKind.POLICY, {"policy": "network", "verdict": "refused", "what": "connect", "host": host, "port": 443}


def events(*turns: Sequence[Fact], changes: ChangeSet | None = None) -> list[Event]:
    """Events of one execution, a second apart; calls get ids in order."""
    found: list[Event] = []
    number = 0

    def add(kind: EventKind, data: dict[str, Any]) -> None:
        found.append(Event(attempt="r.1", execution=1, seq=len(found), kind=kind, data=data,
                           at=START + timedelta(seconds=len(found))))

    add(EventKind.MESSAGE, {"role": "user", "content": "Mend it."})
    for kind, data in (fact for turn in turns for fact in turn):
        number += kind is EventKind.TOOL_CALL
        add(kind, data | {"call": f"c{number}"} if kind in (EventKind.TOOL_CALL, EventKind.TOOL_RESULT) else data)
    if changes is not None:
        add(EventKind.CHANGES, changes.to_json())
    return found


def verdict(passed: bool = True, **more: Any) -> Valid:
    total = float(passed)
    return Valid(**{"rewards": {"reward": total}, "total": total, "assurance": Assurance.CANARY} | more)


def patch(**lines: int) -> Patch:
    """Files below the workdir, by name without ``.py``, and how many lines were added to each."""
    return Patch(files=tuple(FilePatch(path=f"/workspace/{name}.py", added=count, removed=0,
                                       test=name.startswith("test_")) for name, count in lines.items()))


def changed(*names: str, kind: ChangeKind = ChangeKind.FILE) -> ChangeSet:
    return ChangeSet(changes=tuple(Change(path=f"/workspace/{name}", kind=kind, sha256="0" * 64) for name in names))


def facts(*turns: Sequence[Fact], passed: bool = True, changes: ChangeSet | None = None, **more: Any) -> Facts:
    """An attempt that passed by a change of ``add.py``, unless told otherwise."""
    given: dict[str, Any] = {
        "verdict": verdict(passed), "stopped": StopReason.FINISHED, "patch": patch(add=2), "reference": patch(add=2),
        "usage": Usage(prompt_tokens=90, completion_tokens=10),
    }
    return Facts(events=events(*turns, changes=changes or changed("add.py")), **given | more)


def carded(*turns: Sequence[Fact], **more: Any) -> Card:
    return card(facts(*turns, **more))


def measure(name: str, *turns: Sequence[Fact], **more: Any) -> Measure:
    return carded(*turns, **more).named(name)


EDIT = calls("edit_file", path="add.py", old="-", new="+")
CHECK = bash("pytest -q", content="3 passed in 0.10s")
DONE = calls("finish", summary="add.py adds now; pytest passes.")
CAREFUL = (bash("ls", content="add.py"), calls("read_file", path="add.py", content="def add"), EDIT, CHECK, DONE)
