"""Sub-tasks, and calls at once: who may do what, what it costs, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localbox import LocalBox
from scripted import act, bash, said
from woodshed.harness.loop import Loop
from woodshed.interfaces import Sandbox
from woodshed.model import Event, EventKind, StopReason, Usage
from woodshed.model.acts import acts_of

HANDED = said("", ("delegate", {"task": "Count the files."}))


def told(main: list[dict[str, Any]], helper: list[dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Answers for the conversation and for its helper, each in order, told apart by their task."""
    left = {"Do it.": iter(main), "Count the files.": iter(helper)}
    return lambda body: next(left[body["messages"][1]["content"]])


async def test_a_helper_starts_afresh_and_gives_back_its_answer_alone(tmp_path: Path) -> None:
    """It sees its own task and nothing else, works on the same files, and its parent sees its summary."""
    box = LocalBox(tmp_path / "box")
    done = await act(
        Loop(), tmp_path, told(
            [bash("touch a b"), HANDED, bash("cat count"), said("", ("finish", {"summary": "two"}))],
            [bash("ls | wc -l > count; cat count"), said("I look.", ("finish", {"summary": "There are 3."}))]),
        box=box, tools=("default", "delegate"))
    assert done.stop is StopReason.FINISHED
    assert [message["content"] for message in done.requests[2]["messages"][1:]] == ["Count the files."]
    assert "a b" not in str(done.requests[2]["messages"])
    given = done.requests[4]["messages"][-1]
    assert given["content"] == "There are 3."
    assert done.acting.usage == Usage(turns=6, tool_calls=6, prompt_tokens=60, completion_tokens=6)


async def test_the_events_of_a_helper_name_the_call_of_its_parent(tmp_path: Path) -> None:
    """Messages, model calls, tool calls and its end carry the id; ids are unique; the steps stand where they were."""
    done = await act(
        Loop(), tmp_path, told(
            [said("", ("delegate", {"task": "Count the files."}), ("bash", {"command": "cat n"})),
             said("", ("finish", {"summary": "all done"}))],
            [bash("echo 0 > n"), bash("cat n"), said("", ("finish", {"summary": "None, I could not count."}))]),
        tools=("default", "delegate"))
    parents = [(event.kind, event.data.get("parent")) for event in done.events]
    inside = [kind for kind, parent in parents if parent == "t0001c001"]
    assert {EventKind.MESSAGE, EventKind.MODEL_CALL, EventKind.MODEL_RESULT, EventKind.TOOL_CALL,
            EventKind.FINISH} <= set(inside)
    assert all(parent in (None, "t0001c001") for _, parent in parents)
    ids = [data["call"] for data in done.of(EventKind.TOOL_CALL)]
    assert len(set(ids)) == len(ids) == 6
    steps = [step for step in done.trajectory.steps if step.source == "agent"]
    assert [step.parent for step in steps] == [None, "t0001c001", "t0001c001", "t0001c001", None]
    assert [call.name for call in steps[0].tool_calls] == ["delegate", "bash"]
    assert [seen.content for seen in steps[0].observations] == ["None, I could not count.", "0"]
    assert any(act.edits for act in acts_of(done.trajectory, ["n"]))


async def test_a_helper_has_a_part_of_what_is_left(tmp_path: Path) -> None:
    """Its turns come out of its parent's, at most half of them; cut off, it says so, and its last words come back."""
    helper = [said(f"Looking {number}.", ("bash", {"command": f"echo {number}"})) for number in range(9)]
    done = await act(Loop(), tmp_path, told([HANDED, bash("true"), said("", ("finish", {}))], helper),
                     tools=("default", "delegate"), limits={"turns": 9})
    assert done.acting.usage.turns == 1 + 4 + 2
    given = next(message["content"] for message in done.requests[-1]["messages"] if message["role"] == "tool")
    assert given == "[exit code 1]\n[the helper was stopped: turn_limit]\nLooking 3."
    asked = said("", ("delegate", {"task": "Count the files.", "turns": 1}))
    done = await act(Loop(), tmp_path, told([asked, bash("true"), said("", ("finish", {}))], helper),
                     tools=("default", "delegate"))
    assert done.acting.usage.turns == 1 + 1 + 2


async def test_helpers_have_no_helpers_unless_they_may(tmp_path: Path) -> None:
    """One deep by default; the answer says to do it oneself."""
    again = said("", ("delegate", {"task": "Count the files."}))
    for depth, refused in ((1, True), (2, False)):
        done = await act(
            Loop(), tmp_path, told([HANDED, bash("true"), said("", ("finish", {}))],
                                   [again, *[said("", ("finish", {"summary": "I could not."}))] * 2]),
            tools=("default", "delegate"), limits={"depth": depth})
        assert any("a helper has no helpers" in result for result in done.results) is refused
    done = await act(Loop(), tmp_path, HANDED, said("", ("finish", {"summary": "I could not."})))
    assert "There is no tool 'delegate'" in done.results[0]


class Gathering(LocalBox):
    """Reads end only when as many are under way as there should be."""

    def __init__(self, root: Path, together: int) -> None:
        super().__init__(root)
        self._barrier = asyncio.Barrier(together)

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        await self._barrier.wait()
        return await super().read(path, max_bytes=max_bytes)


async def test_reads_of_one_answer_run_at_once_and_answer_in_order(tmp_path: Path) -> None:
    """Calls that only read are under way together; what changes something waits for what stands before it."""
    box: Sandbox = Gathering(tmp_path / "box", 3)
    assert isinstance(box, Gathering)
    box.begin({name: name for name in "abc"})
    reads = [("read_file", {"path": name}) for name in "abc"]
    done = await act(Loop(), tmp_path, said("", *reads, ("bash", {"command": "rm a; ls"})),
                     said("", ("finish", {"summary": "I could not do more."})), box=box)
    assert [message["content"] for message in done.requests[1]["messages"][3:]] == ["a", "b", "c", "b\nc"]
    order = [(event.kind, event.data["call"]) for event in done.events if _of_calls(event)]
    assert [kind for kind, _ in order[:4]] == [EventKind.TOOL_CALL] * 3 + [EventKind.TOOL_RESULT]
    assert [call for kind, call in order if kind is EventKind.TOOL_CALL][:4] == [
        f"t0001c00{number}" for number in range(1, 5)]


def _of_calls(event: Event) -> bool:
    return event.kind in (EventKind.TOOL_CALL, EventKind.TOOL_RESULT)


async def test_a_limit_holds_within_calls_at_once(tmp_path: Path) -> None:
    """Of five reads at once, three are made where three are left."""
    box = LocalBox(tmp_path / "box")
    box.begin({"a": "a"})
    reads = [("read_file", {"path": "a", "start": number}) for number in range(1, 6)]
    done = await act(Loop(), tmp_path, said("", *reads), box=box, limits={"tool_calls": 3})
    assert (done.stop, done.acting.usage.tool_calls) == (StopReason.TOOL_CALLS, 3)
