"""An attempt of our loop done once more, and gone on with from every step: files in a folder, a model over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from localbox import LocalBox
from scripted import Attempt, Script, a_task, act, bash, said, served
from woodshed.gateway.call import Patience
from woodshed.gateway.client import Gateway
from woodshed.gateway.recall import recalled
from woodshed.harness.loop import Loop
from woodshed.harness.rehearsal import Continuation, Recital, Rehearsal, rehearsal
from woodshed.interfaces import Acting
from woodshed.measure.prefix import first, inherited, steps
from woodshed.measure.replayed import compared
from woodshed.measure.resume import past
from woodshed.measure.trajectory import from_events
from woodshed.model import Agent, Event, EventKind, ModelSpec, Past, Sampling, StopReason, Usage
from woodshed.model.event import now
from woodshed.model.feedback import Remark

TOOLS = ("default", "delegate")
WISH = Remark.model_validate({"says": "Write also to wish.", "when": {"check": "test -e two"}})
LATER = Remark.model_validate({"says": "And to later.", "when": {"turn": 4}})


def answers() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A conversation with words alone, calls at once, a malformed one, a helper, a person who speaks, and a finish."""
    main = [
        bash("echo 1 > one; false"), said("I think about it."),
        said("", ("bash", {"command": "echo 2 > two"}), ("bash", "{")),
        said("", ("delegate", {"task": "Count the files."})), bash("echo 5 > wish"),
        said("", ("bash", {"command": "cat one"}), ("bash", {"command": "cat two"})),
        said("", ("finish", {"summary": "I failed."})),
    ]
    helper = [bash("ls > count; cat count"), said("", ("finish", {"summary": "There are 2."}))]

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        script: list[dict[str, Any]] = main if body["messages"][1]["content"] == "Do it." else helper
        turn: int = sum(message["role"] == "assistant" for message in body["messages"])
        return script[turn]

    return answer


@dataclass
class Log:
    """What an Acting emits."""

    events: list[Event] = field(default_factory=list)

    def emit(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        self.events.append(Event(attempt="x", execution=1, seq=len(self.events), kind=kind, at=now(),
                                 data=json.loads(json.dumps(data))))


async def whole(folder: Path) -> Attempt:
    """The attempt that all of this is about."""
    task = a_task(folder, feedback=(WISH, LATER))
    return await act(Loop(), folder, answers(), task=task, tools=TOOLS)


def again(folder: Path, log: Log, box: LocalBox, model: Any) -> Acting:
    """The same attempt to be made, upon another box."""
    spec = ModelSpec(name="scripted", base_url="http://127.0.0.1:9/v1", sampling=Sampling(max_tokens=256))
    return Acting(task=a_task(folder, feedback=(WISH, LATER)), sandbox=box, model=model, emit=log.emit, seed=0,
                  agent=Agent(name="a", harness="h", model=spec, tools=TOOLS), deadline_s=60.0)


async def rehearsed(folder: Path, told: Past, box: LocalBox, **how: Any) -> tuple[StopReason, Log, Recital]:
    """What becomes of doing it again."""
    log, model = Log(), Recital(told.answers, recalled)
    acting = again(folder, log, box, model)
    stop = await (Rehearsal(Loop(), told, **how) if how else rehearsal(Loop(), told)).act(acting)
    return stop, log, model


def content(box: Any) -> dict[str, bytes]:
    """Files of a box, by name."""
    top = box.root / "workspace"
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


async def test_all_of_an_attempt_is_done_again(tmp_path: Path) -> None:
    """Every call with its result, every message and what the person said, and nothing is asked for beyond."""
    done = await whole(tmp_path)
    told = past(done.events)
    assert told is not None
    stop, log, model = await rehearsed(tmp_path, told, box := LocalBox(tmp_path / "again"))
    assert (stop, model.over) == (StopReason.FINISHED, False)
    assert content(box) == content(done.box)
    found = compared(done.events, log.events)
    assert (found.settled, found.diverged, found.same) == (0, (), len(done.of(EventKind.TOOL_CALL)))
    kinds = {EventKind.MESSAGE, EventKind.FEEDBACK, EventKind.TOOL_CALL, EventKind.FINISH}
    assert [(e.kind, e.data) for e in log.events if e.kind in kinds] == [
        (e.kind, e.data) for e in done.events if e.kind in kinds]


async def test_a_harness_that_asks_for_more_is_stopped_and_it_is_told(tmp_path: Path) -> None:
    """The record ends before the harness does: the stop is the recorded one."""
    done = await whole(tmp_path)
    told = past(first(done.events, 3))
    assert told is not None
    stop, _, model = await rehearsed(tmp_path, told.model_copy(update={"stop": StopReason.TURNS}),
                                     LocalBox(tmp_path / "again"))
    assert (stop, model.over) == (StopReason.TURNS, True)


@pytest.mark.parametrize("step", range(7))
async def test_an_attempt_goes_on_from_every_step_as_it_did(tmp_path: Path, step: int) -> None:
    """The state is made again, then the branch is asked the same things, says the same things and ends the same way."""
    done = await whole(tmp_path)
    assert steps(done.events) == 7
    events = first(done.events, step)
    told = past(events) or Past(execution=1, seq=0)
    box = LocalBox(tmp_path / "ground")
    if step:
        _, made, _ = await rehearsed(tmp_path, told, box, bounded=True)
        assert compared(events, made.events).diverged == ()
    if (earlier := past(first(done.events, step // 2))) is not None:  # and the same upon a checkpoint of fewer steps
        half, held = LocalBox(tmp_path / "half"), len(earlier.calls)
        await rehearsed(tmp_path, earlier, half, bounded=True)
        _, part, _ = await rehearsed(tmp_path, told, half, held=held, bounded=True)
        assert compared(events, part.events, held=[call.call for call in earlier.calls]).diverged == ()
        assert content(half) == content(box)
    log, script = Log(), Script([answers()])
    for kind, data in inherited(events, "a"):
        log.emit(kind, data)
    gateway = Gateway(patience=Patience(tries=1))
    async with served(script) as url:
        spec = ModelSpec(name="scripted", base_url=url, sampling=Sampling(max_tokens=256))
        acting = again(tmp_path, log, box, gateway.client(spec, log.emit, past=told.answers))
        try:
            stop = await Continuation(Loop(), told).act(acting)
        finally:
            await gateway.close()
    assert stop is StopReason.FINISHED
    assert content(box) == content(done.box)
    assert script.requests == done.requests[len(told.answers):]
    assert said_and_done(log.events) == said_and_done(done.events)
    kept = Usage(turns=len(told.answers), tool_calls=len(told.calls), prompt_tokens=10 * len(told.answers),
                 completion_tokens=len(told.answers))
    assert acting.usage.plus(kept) == done.acting.usage


def said_and_done(events: Sequence[Event]) -> list[Any]:
    """Steps and what a person said, whoever did it."""
    told = [step.model_copy(update={"inherited": False}) for step in from_events(events, task="t", agent="a").steps]
    return [*told, *({**event.data, "of": None, "inherited": None} for event in events
                     if event.kind is EventKind.FEEDBACK)]


async def test_a_word_is_said_where_it_goes_on(tmp_path: Path) -> None:
    """What is lost comes first, then the person's word, once, and the word alone is feedback."""
    done = await whole(tmp_path)
    told = past(first(done.events, 1))
    assert told is not None
    log, script = Log(), Script([answers()])
    gateway = Gateway(patience=Patience(tries=1))
    async with served(script) as url:
        spec = ModelSpec(name="scripted", base_url=url, sampling=Sampling(max_tokens=256))
        acting = again(tmp_path, log, LocalBox(tmp_path / "box"), gateway.client(spec, log.emit, past=told.answers))
        try:
            await Continuation(Loop(), told, ["All is gone."], "Use two.").act(acting)
        finally:
            await gateway.close()
    said_to = "\n".join(message["content"] for message in script.requests[0]["messages"] if message["role"] == "user")
    assert said_to.index("All is gone.") < said_to.index("Use two.")
    assert (said_to.count("All is gone."), said_to.count("Use two.")) == (1, 1)
    assert next(e.data["said"] for e in log.events if e.kind is EventKind.FEEDBACK) == "Use two."
