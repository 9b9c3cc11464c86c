"""What is left out, and how it is read again: by place, by text, after a resume, in either way of writing calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from resumable import Turn as Script
from resumable import World
from scripted import act, bash, fenced, said
from woodshed.harness.kit import Kit
from woodshed.harness.loop import Loop
from woodshed.harness.shelf import Shelf
from woodshed.harness.summary import Summary
from woodshed.harness.tools.kept import ReadOutput
from woodshed.harness.turns import Entry, Turn
from woodshed.interfaces import Sandbox, ToolResult
from woodshed.model import CheckpointRule, EventKind, Observation, StopReason, ToolCall
from woodshed.store.blobs import Blobs

END = said("", ("finish", {"summary": "I could not do more."}))


class Reader:
    """read_output upon a shelf."""

    def __init__(self, kit: Kit, box: Sandbox) -> None:
        self._tool, self._box = ReadOutput(kit), box

    async def __call__(self, **arguments: object) -> ToolResult:
        return await self._tool.run(self._box, arguments, timeout_s=1)


@pytest.mark.parametrize("stored", [False, True])
async def test_outputs_are_read_by_place_and_by_text(tmp_path: Path, stored: bool) -> None:
    """With and without a store: pages with their place, lines with their handle, and answers to what is not there."""
    done = await act(Loop(), tmp_path, bash("seq 1 9000; echo THE END"), bash("echo the end is near"), END,
                     blobs=Blobs(tmp_path / "blobs") if stored else None)
    [first, second, _] = done.of(EventKind.TOOL_RESULT)
    assert (bool(first["blob"]), first["characters"], "blob" in second) == (stored, 43_900, False)
    kit = Kit(done.acting.task, Shelf())
    whole = "\n".join(map(str, range(1, 9001))) + "\nTHE END"
    kit.shelf.keep("t0001c001", whole)
    kit.shelf.keep("t0002c001", "the end is near")
    kit.shelf.log("t0001c001 bash: seq")
    read = Reader(kit, done.box)
    page = await read(handle="t0001c001", offset=38_890, limit=9)
    assert page.content == f"[characters 38,890 to 38,899 of 43,900]\n{whole[38_890:38_899]}"
    assert (await read(find="the END")).content == "t0001c001: THE END\nt0002c001: the end is near"
    assert (await read(handle="t0001c001", find="8999")).content == "8999"
    assert (await read()).content.endswith("t0001c001 bash: seq")
    assert (await read(handle="log")).content == (await read()).content
    for wrong in ({"handle": "t0009c001"}, {"handle": "t0001c001", "offset": 10**6}, {"find": "nowhere"}):
        answer = await read(**wrong)
        assert answer.exit_code == 1
        assert answer.content.startswith("read_output: ")
    many = await read(handle="t0001c001", find="1")
    assert many.truncated
    assert len(many.content.splitlines()) == 51


async def test_a_model_that_writes_text_is_told_how_to_read_on(tmp_path: Path) -> None:
    """The gap names the block to write, and writing it gives the rest."""
    block = '```json\n{"name": "read_output", "arguments": {"handle": "t0001c001", "offset": 10666, "limit": 40}}\n```'
    done = await act(Loop(), tmp_path, fenced("seq 1 9000"), said(block), said("DONE"), dialect="text")
    assert '{"name": "read_output", "arguments": {"handle": "t0001c001", "offset": 10666}}' in done.results[0]
    assert "[characters 10,666 to 10,706 of 43,892]" in done.results[1]
    assert done.stop is StopReason.FINISHED


async def test_what_was_left_out_is_read_after_a_resume(tmp_path: Path) -> None:
    """Another execution, which never saw the output, reads it from the store."""
    turns: list[Script] = [
        (("bash", {"command": "seq 1 9000"}),),
        (("read_output", {"handle": "t0001c001", "offset": 20_000, "limit": 30}),)]
    calm = World(tmp_path / "calm", turns, CheckpointRule(turns=100))
    calm.folder.mkdir()
    await calm.run([])
    where = [event.seq for event in calm.events if event.kind is EventKind.TOOL_CALL][1]
    world = World(tmp_path, turns, CheckpointRule(turns=1))
    assert await world.run([where]) is StopReason.FINISHED
    read = [[data["content"] for data in one.of(EventKind.TOOL_RESULT) if data["call"] == "t0002c001"][-1]
            for one in (calm, world)]
    assert read[0] == read[1]
    assert read[0].startswith("[characters 20,000 to 20,030 of 43,892]\n")


def test_a_summary_keeps_what_was_told_the_plan_and_the_files() -> None:
    """In little room the newest calls stay, and the rest is named; words of a user, plan and files always stand."""
    summary = Summary()
    for number in range(1, 41):
        call = ToolCall(id=f"t{number:04d}c001", name="bash", arguments={"command": f"step {number}"})
        said_ = "1. look\n2. mend it" if number == 3 else ""
        summary.take(Turn(
            number, Entry("assistant", said_), deeds=[(call, Observation(call=call.id, content="ok", exit_code=0))],
            files=["app.py"] if number == 7 else [], told=["Use tabs, please."] if number == 9 else []))
    text = summary.text(260, lambda handle, offset: f"read_output({handle})")
    assert text.startswith("[Turns 1 to 40 are left out here")
    for kept in ("- Use tabs, please.", "1. look\n2. mend it", "Files you changed: app.py",
                 "t0040c001 bash: step 40 -> exit 0: ok", "lines before these: read_output(log)"):
        assert kept in text
    assert "t0001c001" not in text
