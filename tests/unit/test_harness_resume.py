"""Resuming: what is done again, what is told, what is never asked for twice, and what checkpoints survive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from resumable import Box, Turn, World
from scripted import served
from woodshed.errors import EnvironmentFault
from woodshed.harness.replay import Replay
from woodshed.model import AgentLimits, CheckpointRule, EventKind, SandboxPolicy, StopReason
from woodshed.model.feedback import Cue, Remark
from woodshed.model.network import HostRule, NetworkPolicy

OPEN = SandboxPolicy(network=NetworkPolicy(rules=(HostRule(host="example.com"),)))


def bash(command: str) -> Turn:
    return (("bash", {"command": command}),)


def write(path: str, content: str) -> Turn:
    return (("write_file", {"path": path, "content": content}),)


def cut_at(world: World, kind: EventKind, number: int = 1) -> int:
    """The place of the event, counted from 1, in the first execution of a world that was not cut off."""
    places = [event.seq for event in world.events if event.kind is kind]
    return places[number - 1]


async def calm(folder: Path, turns: Sequence[Turn], **how: Any) -> World:
    """The same world without a cut, to know where things stand in the log."""
    world = World(folder / "calm", turns, CheckpointRule(turns=100), **how)
    world.folder.mkdir()
    await world.run([])
    return world


def notice(world: World) -> str:
    """What the model was told of the machine, last."""
    messages = [str(message["content"]) for message in world.requests[-1]["messages"] if message["role"] == "user"]
    return next(text for text in reversed(messages) if "machine that you work on was lost" in text)


async def test_a_call_that_may_have_left_the_sandbox_is_not_made_again(tmp_path: Path) -> None:
    """With a network an interrupted command is told as such, earlier ones are not repeated; file tools are."""
    mark = tmp_path / "outside"
    turns = [write("a", "one"), bash(f"echo x >>{mark}; echo sent"), bash(f"echo y >>{mark}; echo again")]
    where = cut_at(await calm(tmp_path, turns, policy=OPEN), EventKind.TOOL_RESULT, 3)
    mark.unlink()
    world = World(tmp_path, turns, CheckpointRule(turns=100), policy=OPEN)
    assert await world.run([where]) is StopReason.FINISHED
    assert mark.read_text() == "x\ny\n"
    assert (world.boxes[-1].root / "workspace" / "a").read_text() == "one"
    [told] = [data for data in world.of(EventKind.RESUME, 2) if data["state"] == "live"]
    assert (told["redone"], told["not_repeated"], told["interrupted"]) == (1, ["t0002c001"], ["t0003c001"])
    assert "t0002c001" in notice(world)
    results = {data["call"]: data for data in world.of(EventKind.TOOL_RESULT, 2)}
    assert results["t0003c001"]["interrupted"] is True
    seen = [m["content"] for m in world.requests[-1]["messages"] if m["role"] == "tool"]
    assert "was not run again" in seen[2]
    assert next(step for step in world.steps if step.message == "turn 2").observations[0].interrupted


async def test_without_a_network_everything_lost_is_done_again(tmp_path: Path) -> None:
    """The control: with none, all three commands run once more in the new sandbox, and nothing is left out."""
    mark = tmp_path / "outside"
    turns = [write("a", "one"), bash(f"echo x >>{mark}; echo sent"), bash(f"echo y >>{mark}; echo again")]
    where = cut_at(await calm(tmp_path, turns), EventKind.TOOL_RESULT, 3)
    mark.unlink()
    world = World(tmp_path, turns, CheckpointRule(turns=100))
    await world.run([where])
    assert mark.read_text() == "x\ny\nx\ny\n"
    [told] = [data for data in world.of(EventKind.RESUME, 2) if data["state"] == "live"]
    assert (told["redone"], told["not_repeated"], told["interrupted"]) == (2, [], ["t0003c001"])


async def test_another_result_is_an_event_and_is_told(tmp_path: Path) -> None:
    """A call that answers otherwise the second time stays in the conversation as it was; the difference is named."""
    mark = tmp_path / "outside"
    turns = [bash(f"test -e {mark}; code=$?; touch {mark}; exit $code"), write("b", "two")]
    where = cut_at(await calm(tmp_path, turns), EventKind.TOOL_RESULT, 2)
    mark.unlink()
    world = World(tmp_path, turns, CheckpointRule(turns=100))
    await world.run([where])
    redone = [data for data in world.of(EventKind.RESUME, 2) if data["state"] == "redone"]
    assert [(data["call"], data["same"], data.get("exit_code")) for data in redone] == [("t0001c001", False, 0)]
    assert "t0001c001 (bash: exit code 0, was 1)" in notice(world)
    seen = [m["content"] for m in world.requests[-1]["messages"] if m["role"] == "tool"]
    assert "exit code 1" in seen[0]


async def restored_from(world: World, cuts: Sequence[int], spoil: Sequence[str]) -> dict[str, Any]:
    """What the last of some executions began with, blobs of the named checkpoints spoilt before it; its first event."""
    async with served(world) as url:  # type: ignore[arg-type]  # it answers as a Script does
        for cut in cuts:
            await world.execute(url, cut)
        kept = {str(data["turn"]): data for data in world.of(EventKind.CHECKPOINT)}
        for turn in spoil:
            path = world.blobs.path(kept[turn]["blobs"][-1])
            path.unlink() if turn == "1" else path.write_bytes(b"something else")
        assert await world.execute(url, None) is StopReason.FINISHED
    return world.of(EventKind.RESUME, world.execution)[0]


@pytest.mark.parametrize(("spoilt", "turn", "redone"), [((), 3, 0), (("3",), 2, 1), (("1", "2", "3"), None, 3)],
                         ids=["whole", "last", "all"])
async def test_a_broken_checkpoint_is_passed_over_by_name(
    tmp_path: Path, spoilt: tuple[str, ...], turn: int | None, redone: int
) -> None:
    """Missing or altered blobs send it to the checkpoint before, to the start at last, and the event says why."""
    turns = [write("a", "1"), write("b", "2"), write("c", "3"), write("d", "4")]
    world = World(tmp_path, turns, CheckpointRule(turns=1))
    probe = World(tmp_path / "probe", turns, CheckpointRule(turns=1))
    probe.folder.mkdir()
    await probe.run([])
    begun = await restored_from(world, [cut_at(probe, EventKind.TOOL_CALL, 4)], spoilt)
    assert (begun["checkpoint"] and begun["checkpoint"]["turn"]) == turn
    assert len(begun["broken"]) == len(spoilt)
    assert all("is missing" in why or "is damaged" in why for why in begun["broken"])
    [live] = [data for data in world.of(EventKind.RESUME, 2) if data["state"] == "live"]
    assert live["redone"] == redone
    assert world.boxes[-1].digest() == probe.boxes[-1].digest()


async def test_limits_hold_for_the_whole_attempt(tmp_path: Path) -> None:
    """Turns and tool calls of earlier executions are counted, and so is the agent's time."""
    turns = [write("a", str(number)) for number in range(8)]
    where = cut_at(await calm(tmp_path, turns), EventKind.MODEL_CALL, 3)
    world = World(tmp_path, turns, CheckpointRule(turns=100), limits=AgentLimits(turns=4))
    assert await world.run([where]) is StopReason.TURNS
    assert (world.usage.turns, world.usage.tool_calls) == (4, 4)
    assert sum(world.asked.values()) == 4
    late = World(tmp_path / "late", turns, CheckpointRule(turns=100), wall_s=1e-9)
    late.folder.mkdir()
    late.events, late.execution = world.events[:where], 1
    assert await late.run([]) is StopReason.WALL
    assert sum(late.asked.values()) == 0
    assert (late.boxes[-1].root / "workspace" / "a").read_text() == "1"


async def test_who_leaves_makes_a_checkpoint_that_nothing_follows(tmp_path: Path) -> None:
    """Asked to leave, an attempt ends cancelled at its next turn; whoever goes on with it has nothing to do again."""
    world = World(tmp_path, [write("a", "1"), write("b", "2")], CheckpointRule(turns=100), leaving=True)
    async with served(world) as url:  # type: ignore[arg-type]  # it answers as a Script does
        with pytest.raises(asyncio.CancelledError):
            await world.execute(url, None)
        assert [data["why"] for data in world.of(EventKind.CHECKPOINT)] == ["leaving"]
        assert world.asked.total() == 0
        world.leaving = False
        assert await world.execute(url, None) is StopReason.FINISHED
    [live] = [data for data in world.of(EventKind.RESUME, 2) if data["state"] == "live"]
    assert (live["redone"], live["text"]) == (0, "")


@pytest.mark.parametrize("cut", range(1, 9), ids=str)
async def test_calls_that_no_model_asked_for_are_made_once(tmp_path: Path, cut: int) -> None:
    """A replay that is cut off anywhere, and left once more at its next turn, writes what an undisturbed one does."""
    calls = [{"tool_call_id": f"c{n}", "function_name": "bash", "arguments": {"command": f"echo {n} >>log"}}
             for n in range(4)]
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps({"schema_version": "ATIF-v1.6", "steps": [
        {"step_id": n, "source": "agent", "message": "", "tool_calls": [call]} for n, call in enumerate(calls, 1)]}))
    world = World(tmp_path, [], CheckpointRule(turns=2), harness=Replay(file))
    assert await world.execute("http://127.0.0.1:9", cut) is None
    world.leaving = True
    with suppress(asyncio.CancelledError):
        await world.execute("http://127.0.0.1:9", None)
    world.leaving = False
    assert await world.execute("http://127.0.0.1:9", None) is StopReason.FINISHED
    assert (world.boxes[-1].root / "workspace" / "log").read_text() == "0\n1\n2\n3\n"
    made = [data["call"] for data in world.of(EventKind.TOOL_RESULT)]
    assert sorted(set(made)) == made


class Unfreezable(Box):
    """Something in it does not stop."""

    async def freeze(self) -> None:
        raise EnvironmentFault("sandbox local cannot be frozen: something in it does not stop")


async def test_a_checkpoint_that_cannot_be_made_breaks_nothing(tmp_path: Path) -> None:
    """It is noted, and the attempt goes on: no agent can make its own attempt invalid."""
    world = World(tmp_path, [write("a", "1"), write("b", "2")], CheckpointRule(turns=1), box=Unfreezable)
    assert await world.run([]) is StopReason.FINISHED
    assert world.of(EventKind.CHECKPOINT) == []
    notes = [data["text"] for data in world.of(EventKind.NOTE)]
    assert any(text.startswith("no checkpoint after turn 1: sandbox local cannot be frozen") for text in notes)


async def test_a_harness_that_does_otherwise_is_told_apart(tmp_path: Path) -> None:
    """Where the conversation is not what it was (another version of the harness), an event says so, and it goes on."""
    turns = [write("a", "1"), write("b", "2")]
    where = cut_at(await calm(tmp_path, turns), EventKind.MODEL_CALL, 2)
    world = World(tmp_path, turns, CheckpointRule(turns=100))
    async with served(world) as url:  # type: ignore[arg-type]  # it answers as a Script does
        await world.execute(url, where)
        world.instruction = "Do something else."
        assert await world.execute(url, None) is StopReason.FINISHED
    assert [data["state"] for data in world.of(EventKind.RESUME, 2)].count("differs") == 1
    assert json.dumps(world.requests[-1]).count("Do something else.") == 1


SPOKEN: dict[str, dict[str, Any]] = {
    "somebody sends it": {"sent": [(2, False, "Yes, go on.")]},
    "the task scripts it": {"task_changes": {"feedback": (Remark(says="Yes, go on.", when=Cue(turn=2)),)}},
}


@pytest.mark.parametrize("whence", sorted(SPOKEN))
async def test_what_a_person_spoke_of_is_kept_before_the_agent_acts_upon_it(tmp_path: Path, whence: str) -> None:
    """A word of a person keeps the state it was said of, before the next call; a crash after it goes on from there."""
    turns = [write("a", "one"), write("a", "two"), write("a", "three"), write("b", "four")]
    quiet = await calm(tmp_path, turns)
    assert not quiet.of(EventKind.CHECKPOINT)
    world = World(tmp_path, turns, CheckpointRule(turns=100), **SPOKEN[whence])
    assert await world.run([]) is StopReason.FINISHED
    kinds = [event.kind for event in world.events]
    [place] = [number for number, kind in enumerate(kinds) if kind is EventKind.CHECKPOINT]
    assert kinds[:place].count(EventKind.FEEDBACK) == 1
    assert kinds[:place].count(EventKind.MODEL_CALL) == kinds[:place].count(EventKind.TOOL_RESULT) == 2
    [checkpoint] = world.of(EventKind.CHECKPOINT)
    assert (checkpoint["why"], checkpoint["turn"]) == ("person", 2)
    cut = World(tmp_path / "cut", turns, CheckpointRule(turns=100), **SPOKEN[whence])
    cut.folder.mkdir()
    assert await cut.run([cut_at(world, EventKind.TOOL_RESULT, 4)]) is StopReason.FINISHED
    [live] = [data for data in cut.of(EventKind.RESUME, 2) if data["state"] == "live"]
    assert "its files after turn 2" in live["text"]
    assert live["redone"] == 1
    assert [data["said"] for data in cut.of(EventKind.FEEDBACK)] == ["Yes, go on."]
    assert (cut.boxes[-1].root / "workspace" / "b").read_text() == "four"
