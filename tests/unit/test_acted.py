"""Acted attempts: those that somebody outside acts end like any others, and leave nothing open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import EXAMPLES, leftovers
from servekit import blank_home
from woodshed.errors import Cause, Conflict, Missing, UsageError
from woodshed.model import EventKind, RunState
from woodshed.model.acted import Act, Begin, Seen
from woodshed.model.agent import AgentLimits
from woodshed.services.acted import ActedAttempt, ActedAttempts, Full, Local
from woodshed.services.home import Home
from woodshed.services.offer import made

WRITE = Act(tool="bash", arguments={"command": "echo 'hello world' > hello.txt"})


def attempts(home: Home, **more: float) -> ActedAttempts:
    return ActedAttempts(home, made([EXAMPLES / "first-steps"]), **more)  # type: ignore[arg-type]  # two keywords, both numbers


async def test_an_acted_attempt_is_an_attempt_with_a_verdict(new_home: Callable[[], Path]) -> None:
    """Calls are carried out and recorded, the work is verified afresh, and the run has it; a mistake is answered."""
    with blank_home(new_home()) as home:
        async with attempts(home, most=1) as open_:
            acted = await open_.begin(Begin(task="write-file", seed=7))
            assert "hello" in acted.begun.instruction
            assert {"bash", "finish", "edit_file"} <= {tool.name for tool in acted.begun.tools}
            with pytest.raises(Full):
                await open_.begin(Begin(task="write-file"))
            wrong = await acted.act(Act(tool="bush"))
            assert "no tool" in wrong.content
            assert (await acted.act(Act(tool="bash", arguments={"command": "exit 3"}))).exit_code == 3
            assert (await acted.act(WRITE)).ended is None
            ended = await acted.finish()
            assert (ended.valid, ended.reward, ended.passed) == (True, 1.0, True)
            assert await acted.finish() == ended
            with pytest.raises(Conflict):
                await acted.act(WRITE)
            attempt = home.store.attempt(ended.attempt)
            assert attempt.outcome is not None
            assert home.store.run(attempt.run).state is RunState.FINISHED
            calls = [one for one in home.store.events(attempt.id) if one.kind is EventKind.TOOL_CALL]
            assert [call.data["name"] for call in calls] == ["bush", "bash", "bash"]
            await _left_alone(open_, home)
            await _ended_by_others(open_)
    assert leftovers(home.path) == []


async def _left_alone(open_: ActedAttempts, home: Home) -> None:
    """Who leaves in the middle of a call gets no reward, and the place is free."""
    acted = await open_.begin(Begin(task="write-file"))
    working = asyncio.create_task(acted.act(Act(tool="bash", arguments={"command": "sleep 600"})))
    await asyncio.sleep(0)
    await acted.close()
    seen = await working
    assert seen.ended is not None
    assert (seen.ended.valid, seen.ended.reward, seen.ended.cause) == (False, None, Cause.CANCELLED)
    attempt = home.store.attempt(seen.ended.attempt)
    assert attempt.outcome is not None
    assert open_.open == 0


async def _ended_by_others(open_: ActedAttempts) -> None:
    """A limit that is reached ends it, and what was done counts; 'wait_s' waits for a place."""
    first = await open_.begin(Begin(task="write-file", limits=AgentLimits(tool_calls=1)))
    waiting = asyncio.create_task(open_.begin(Begin(task="write-file", wait_s=600, tools=("bash",))))
    seen = await first.act(WRITE)
    assert seen.ended is not None
    assert (seen.ended.reward, seen.ended.stop) == (1.0, "tool_call_limit")
    second = await waiting
    assert [tool.name for tool in second.begun.tools] == ["bash"]
    assert (await second.finish()).reward == 0.0


async def test_who_is_silent_has_left(new_home: Callable[[], Path]) -> None:
    """An attempt in which nobody acts for a while is invalid, and frees its place; closing all cuts off the rest."""
    with blank_home(new_home()) as home:
        open_ = attempts(home, most=2, idle_s=0.05)
        silent = await open_.begin(Begin(task="write-file"))
        await asyncio.wait({silent.running})
        ended = await silent.finish()
        assert (ended.valid, ended.reward, ended.cause) == (False, None, Cause.CANCELLED)
        assert "nobody acted" in ended.detail
        assert open_.open == 0
        await open_.close()
        with pytest.raises(Full):
            await open_.begin(Begin(task="write-file"))


STEPS = {
    "task.toml": 'schema_version = "1.4"\n[[steps]]\nname = "one"\nmin_reward = 1.0\n[[steps]]\nname = "two"\n',
    "environment/workspace/given.txt": "given\n",
    **{f"steps/{step}/{name}": content for step in ("one", "two") for name, content in (
        ("instruction.md", f"Make {step}.txt.\n"),
        ("tests/test.sh", f"#!/bin/bash\ntest -e {step}.txt && echo 1 > /logs/verifier/reward.txt || "
                          "echo 0 > /logs/verifier/reward.txt\n"))},
}
DONE = Act(tool="finish", arguments={"summary": "done"})


def of_steps(folder: Path) -> Path:
    """A folder with one task of two steps, each of which wants a file of its name."""
    for name, content in STEPS.items():
        path = folder / "stepwise" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


async def done(acted: ActedAttempt) -> Seen:
    """The tool is asked for twice: first it wants to see that the work was tried."""
    assert (await acted.act(DONE)).exit_code == 1
    return await acted.act(DONE)


def make(step: str) -> Act:
    return Act(tool="bash", arguments={"command": f"touch {step}.txt"})


async def test_steps_are_acted_one_after_the_other(
    new_home: Callable[[], Path], tmp_path: Path
) -> None:
    """'finish' ends a step; when it is judged, the next one is told and acted in the same sandbox, to one verdict."""
    with blank_home(new_home()) as home:
        async with ActedAttempts(home, made([of_steps(tmp_path / "tasks")])) as open_:
            with pytest.raises(UsageError, match=r"tools: .* several steps.* Name finish among them"):
                await open_.begin(Begin(task="stepwise", tools=("bash",)))
            acted = await open_.begin(Begin(task="stepwise", limits=AgentLimits(tool_calls=4)))
            assert acted.begun.step is not None
            assert (acted.begun.step.name, acted.begun.step.number, acted.begun.step.steps) == ("one", 1, 2)
            assert acted.begun.instruction == "Make one.txt.\n"
            await acted.act(make("one"))
            seen = await done(acted)
            assert (seen.ended, seen.step) == (None, acted.begun.step.model_copy(update={
                "name": "two", "number": 2, "instruction": "Make two.txt.\n"}))
            assert seen.content.endswith("Step 2 of 2, two:\nMake two.txt.\n")
            listed = await acted.act(Act(tool="bash", arguments={"command": "ls"}))
            assert listed.content.split()[:2] == ["given.txt", "one.txt"]
            for _ in range(3):  # the limit of calls is each step's own, and reached by the last one
                last = await acted.act(make("two"))
            assert last.ended is not None
            assert (last.step, last.ended.reward, last.ended.stop) == (None, 1.0, "tool_call_limit")
            events = [one.data for one in home.store.events(acted.begun.id) if one.kind is EventKind.STATE]
            assert [one["step"] for one in events if one["state"] == "step_judged"] == ["one", "two"]
            await _ended_before_the_last_step(open_)
            await _left_between_steps(open_)


async def _ended_before_the_last_step(open_: ActedAttempts) -> None:
    """The end may be said in any step: of those after it nobody does anything. Steps out of reach are not told."""
    first = await open_.begin(Begin(task="stepwise"))
    await first.act(make("one"))
    ended = await first.finish()
    assert (ended.reward, ended.rewards) == (0.5, {"reward": 0.5, "one/reward": 1.0, "two/reward": 0.0})
    short = await open_.begin(Begin(task="stepwise"))
    seen = await done(short)
    assert seen.step is None
    assert seen.ended is not None
    assert (seen.ended.valid, seen.ended.reward) == (True, 0.0)


async def _left_between_steps(open_: ActedAttempts) -> None:
    """Who leaves while a step is judged has left; one that did not hear of a step's end does nothing in the next."""
    left, judging = await _judged_unheard(open_)
    await left.close()
    ended = (await judging).ended
    assert ended is not None
    assert (ended, ended.reward, ended.cause) == (await left.finish(), None, Cause.CANCELLED)
    deaf, judging = await _judged_unheard(open_)
    judging.cancel()
    await asyncio.wait({judging})
    while deaf.outside.standing is deaf.told:
        await asyncio.wait({deaf.outside.next})
    seen = await deaf.act(make("two"))
    assert seen.content.startswith("The step was over; this call was not carried out.\n\nStep 2 of 2, two:")
    assert (await deaf.finish()).reward == 0.5


async def _judged_unheard(open_: ActedAttempts) -> tuple[ActedAttempt, asyncio.Task[Seen]]:
    """An attempt whose first step is just being judged, and the call that waits for that."""
    acted = await open_.begin(Begin(task="stepwise"))
    await acted.act(make("one"))
    judging = asyncio.create_task(done(acted))
    assert acted.told is not None
    await asyncio.wait({acted.told.over})
    return acted, judging


def test_threads_act_in_this_process(new_home: Callable[[], Path]) -> None:
    """Without an event loop of one's own: whole attempts, and what is not offered is refused."""
    place = new_home()
    with Local([EXAMPLES / "first-steps"], home=place) as local:
        for task, error in (("nothing", Missing), ("../tasks", UsageError), (".", UsageError)):
            with pytest.raises(error):
                local.begin(Begin(task=task))
        begun = local.begin(Begin(task="write-file"))
        local.act(begun.id, WRITE)
        assert local.finish(begun.id).reward == 1.0
        left = local.begin(Begin(task="write-file"))
        local.leave(left.id)
        assert local.finish(left.id).reward is None
    assert leftovers(place) == []
