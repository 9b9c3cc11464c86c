"""A fine attempt at a task of several steps goes on in the step and at the turn that it had reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stepped import SCRIPT, STEPS, Stepped, a_task
from woodshed.errors import Cause
from woodshed.measure.resume import past
from woodshed.model import CheckpointRule, EventKind, Invalid, Outcome, Valid
from woodshed.sandbox.native.engine import NativeEngine

EVERY_TURN, NEVER = CheckpointRule(turns=1), CheckpointRule(turns=1000, minutes=None)


@pytest.fixture
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    """The engine of one test."""
    made = NativeEngine(shed_home)
    yield made
    await made.close()


async def calm(engine: NativeEngine, folder: Path, rule: CheckpointRule) -> tuple[Stepped, Outcome]:
    """An attempt that nobody disturbed."""
    attempt = Stepped(folder / "calm", engine, a_task(folder / "task"), rule)
    outcome = await attempt.run()
    assert isinstance(outcome.verdict, Valid)
    assert outcome.verdict.passed, outcome.verdict
    return attempt, outcome


def place(attempt: Stepped, kind: EventKind, number: int = 0, **data: object) -> int:
    """Where the events have one of this kind with this data."""
    found = [event.seq for event in attempt.events if event.kind is kind and data.items() <= event.data.items()]
    return found[number]


def the_same(broken: Stepped, came_to: Outcome, one: Stepped, then: Outcome) -> None:
    """It ended as one that was not disturbed: each call and each step's judgement stands in its record once."""
    assert (came_to.verdict, came_to.stop, came_to.usage) == (then.verdict, then.stop, then.usage)
    assert broken.steps == one.steps
    assert sum(broken.asked.values()) - sum(one.asked.values()) <= broken.execution - 1
    told = [event for event in broken.whole if event.kind is not EventKind.RESUME]
    for kind in (EventKind.MODEL_CALL, EventKind.MODEL_RESULT, EventKind.TOOL_CALL, EventKind.TOOL_RESULT):
        assert [e.data["call"] for e in told if e.kind is kind] == [e.data["call"] for e in one.of_events(kind)]
    steps = [e.data["step"] for e in told if e.kind is EventKind.STATE and e.data["state"] == "step"]
    verdicts = [e.data for e in told if e.kind is EventKind.STATE and e.data["state"] == "step_judged"]
    assert (steps, [data["step"] for data in verdicts]) == (list(STEPS), list(STEPS))
    for kind in (EventKind.CHANGES, EventKind.VERIFIER, EventKind.VERDICT):
        assert sum(event.kind is kind for event in told) == sum(event.kind is kind for event in one.events)
    assert not [data for data in broken.of(EventKind.RESUME) if data["state"] == "differs"]


async def test_a_step_that_was_judged_is_not_judged_again(engine: NativeEngine, tmp_path: Path) -> None:
    """Killed at a turn in each of three steps, an attempt ends as one that was not, and judges each step once."""
    one, then = await calm(engine, tmp_path, EVERY_TURN)
    broken = Stepped(tmp_path / "broken", engine, one.task, EVERY_TURN)
    came_to = await broken.run([(EventKind.MODEL_RESULT, "m00002", "one"), (EventKind.TOOL_CALL, "t0001c001", "two"),
                                (EventKind.TOOL_RESULT, "t0001c001", "three")])
    the_same(broken, came_to, one, then)
    assert broken.verifier.asked == Counter(range(3))
    assert [(data["steps"], data["step"]) for data in broken.of(EventKind.RESUME) if data["state"] == "begun"] == [
        (0, "one"), (1, "two"), (2, "three")]


@pytest.mark.slow
async def test_a_step_that_was_captured_is_only_judged(engine: NativeEngine, tmp_path: Path) -> None:
    """Killed while the second step and the last one were judged, nothing is asked or done again; the last needs no

    sandbox of the agent's.
    """
    one, then = await calm(engine, tmp_path, EVERY_TURN)
    for number, sandboxes in ((1, 1), (2, 0)):
        broken = Stepped(tmp_path / f"broken{number}", engine, one.task, EVERY_TURN)
        came_to = await broken.run([place(one, EventKind.VERIFIER, number)])
        the_same(broken, came_to, one, then)
        assert broken.asked == one.asked
        opened = [data["used"]["sandboxes"] for data in broken.of(EventKind.STAGE, 2) if data["stage"] == "prepare"]
        assert sum(opened) == sandboxes


@pytest.mark.slow
async def test_steps_without_a_whole_checkpoint_are_done_again(engine: NativeEngine, tmp_path: Path) -> None:
    """Where no checkpoint of the steps before is whole, their calls are carried out again, and no model is asked."""
    one, then = await calm(engine, tmp_path, NEVER)
    broken = Stepped(tmp_path / "broken", engine, one.task, NEVER)
    async with broken.model() as model:
        assert await broken.execute(model, place(one, EventKind.TOOL_RESULT, 2, call="t0001c001")) is None
        kept = broken.of(EventKind.CHECKPOINT)
        assert [(data["why"], data["over"]) for data in kept] == [("step", True)] * 2
        for data in kept:
            (broken.folder / "blobs" / data["digest"][:2] / data["digest"][2:]).unlink()
        came_to = await broken.execute(model)
    assert came_to is not None
    the_same(broken, came_to, one, then)
    assert broken.asked == one.asked
    begun, *again, live = broken.of(EventKind.RESUME)
    assert (begun["checkpoint"], len(begun["broken"])) == (None, 2)
    assert [(d["step"], d["redone"], d["differing"]) for d in again if d["state"] == "again"] == [
        ("one", 3, 0), ("two", 3, 0)]
    assert (live["state"], live["interrupted"]) == ("live", ["t0001c001"])


@pytest.mark.slow
async def test_what_a_lost_machine_lacks_is_not_held_against_the_agent(engine: NativeEngine, tmp_path: Path) -> None:
    """A step that needs /tmp begins undisturbed; after a restore it cannot, as the references show: no false zero.

    The control: what the agent itself had removed is its own doing, after a restore as well.
    """
    needs = {"steps/three/workdir/setup.sh": "test -e /tmp/mark\n", "steps/two/solution/solve.sh": "touch /tmp/mark\n"}
    marking = {**SCRIPT, "two": ("touch /tmp/mark; echo d >>log",)}
    task = a_task(tmp_path / "lost", needs)
    one = Stepped(tmp_path / "one", engine, task, EVERY_TURN, marking)
    undisturbed = (await one.run()).verdict
    assert isinstance(undisturbed, Valid)
    assert undisturbed.passed
    cut = place(one, EventKind.STATE, state="step_judged", step="two") + 1
    lost = (await Stepped(tmp_path / "two", engine, task, EVERY_TURN, marking).run([cut])).verdict
    assert isinstance(lost, Invalid)
    assert lost.cause is Cause.ENVIRONMENT
    task = a_task(tmp_path / "removed", {"steps/three/workdir/setup.sh": "test -e given\n"})
    removing = {**SCRIPT, "two": ("rm given; echo d >>log",)}
    removed = (await Stepped(tmp_path / "three", engine, task, EVERY_TURN, removing).run([cut])).verdict
    assert isinstance(removed, Valid)
    assert (removed.flags, removed.rewards["reward"]) == (("setup_failed",), 2 / 3)


async def test_a_verdict_that_cannot_be_read_is_made_again(engine: NativeEngine, tmp_path: Path) -> None:
    """Where a step's verdict is no longer in its event, it goes on from there: never past what it cannot tell."""
    one, _ = await calm(engine, tmp_path, EVERY_TURN)
    unread = [event.model_copy(update={"data": {"size": 1}}) if event.data.get("state") == "step_judged" else event
              for event in one.events]
    told = past(unread[:-2])
    assert told is not None
    assert (told.step, told.earlier, told.asked) == ("one", (), 3)
    assert told.seq < place(one, EventKind.STATE, state="step", step="two")


@pytest.mark.slow
@pytest.mark.parametrize("rule", [EVERY_TURN, NEVER], ids=["every-turn", "never"])
async def test_an_attempt_of_steps_cut_off_anywhere_ends_as_one_that_was_not(
    rule: CheckpointRule, engine: NativeEngine, tmp_path: Path
) -> None:
    """Before each of its events."""
    one, then = await calm(engine, tmp_path, rule)
    for cut in range(len(one.events)):
        broken = Stepped(tmp_path / f"broken{cut}", engine, one.task, rule)
        came_to = await broken.run([cut, 9])
        the_same(broken, came_to, one, then)
