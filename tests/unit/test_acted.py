"""Acted attempts: those that somebody outside acts end like any others, and leave nothing open."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kit import EXAMPLES, leftovers
from servekit import blank_home
from woodshed.errors import Cause, Conflict, Missing, UsageError
from woodshed.model import EventKind, RunState
from woodshed.model.acted import Act, Begin
from woodshed.model.agent import AgentLimits
from woodshed.services.acted import ActedAttempts, Full, Local
from woodshed.services.home import Home
from woodshed.services.offer import made

WRITE = Act(tool="bash", arguments={"command": "echo 'hello world' > hello.txt"})


def attempts(home: Home, **more: float) -> ActedAttempts:
    return ActedAttempts(home, made([EXAMPLES / "first-steps"]), **more)  # type: ignore[arg-type]  # two keywords, both numbers


async def test_an_acted_attempt_is_an_attempt_with_a_verdict(tmp_path: Path) -> None:
    """Calls are carried out and recorded, the work is verified afresh, and the run has it; a mistake is answered."""
    with blank_home(tmp_path / "home") as home:
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
    assert leftovers(tmp_path / "home") == []


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


async def test_who_is_silent_has_left(tmp_path: Path) -> None:
    """An attempt in which nobody acts for a while is invalid, and frees its place; closing all cuts off the rest."""
    with blank_home(tmp_path / "home") as home:
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


def test_threads_act_in_this_process(tmp_path: Path) -> None:
    """Without an event loop of one's own: whole attempts, and what is not offered is refused."""
    with Local([EXAMPLES / "first-steps"], home=tmp_path) as local:
        for task, error in (("nothing", Missing), ("../tasks", UsageError), (".", UsageError)):
            with pytest.raises(error):
                local.begin(Begin(task=task))
        begun = local.begin(Begin(task="write-file"))
        local.act(begun.id, WRITE)
        assert local.finish(begun.id).reward == 1.0
        left = local.begin(Begin(task="write-file"))
        local.leave(left.id)
        assert local.finish(left.id).reward is None
    assert leftovers(tmp_path) == []
