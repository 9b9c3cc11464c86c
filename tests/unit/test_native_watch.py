"""Watching a native sandbox's files: complete when it is calm, bounded when it is not, and gone when it is closed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from woodshed.errors import SandboxDied
from woodshed.interfaces import FileEvent
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.inside import watch
from woodshed.sandbox.native.link import children
from woodshed.sandbox.native.watching import Watching

_WAIT_S = 20.0
FLOOD = """
import os
os.chdir("w/d")
open("armed", "w").close()
while True:
    for name in range(3000):
        os.chmod(str(name), 0o600)
"""


@pytest.fixture
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home)
    yield made
    await made.close()


@pytest.fixture
async def box(engine: NativeEngine) -> NativeSandbox:
    return await engine.create(EnvironmentSpec(), SandboxPolicy())


async def armed(box: NativeSandbox, path: str) -> Watching:
    """A watch that has begun: a file at its top has shown."""
    events = cast("Watching", box.watch(path))
    first = asyncio.create_task(seen_until(events, "armed"))
    while not first.done():
        await box.exec(f"touch {path}/armed; rm {path}/armed; touch {path}/armed")
        await asyncio.sleep(0.05)
    await first
    return events


async def seen_until(events: Watching, name: str) -> list[FileEvent]:
    """The events up to the first of a file called ``name``."""
    seen: list[FileEvent] = []
    async with asyncio.timeout(_WAIT_S):
        async for event in events:
            seen.append(event)
            if event.path.rpartition("/")[2] == name:
                return seen
    raise AssertionError(f"the events ended: {seen}")


async def drain(events: Watching) -> None:
    """Take what arming it left."""
    with suppress(TimeoutError):
        while True:
            await asyncio.wait_for(anext(events), 0.3)


def helpers(box: NativeSandbox) -> int:
    return len(children(box.pid))


async def test_each_kind_of_event_is_told(box: NativeSandbox) -> None:
    """Making, writing, modes, moves, deletions and trees moved in are told, with odd names whole."""
    await box.exec("mkdir -p w/d tree/a/b; echo x >w/d/changed; echo x >w/moded; echo x >w/gone; echo x >tree/a/b/c")
    events = await armed(box, "w")
    await box.exec("echo y >>w/d/changed; chmod 600 w/moded; rm w/gone; echo x >\"w/new\nline\";"
                   " mv w/d/changed w/d/moved; mv tree w/tree; ln -s x w/link; touch w/end")
    told = {event.path.removeprefix("/workspace/w/"): event.kind for event in await seen_until(events, "end")}
    assert told == {
        "d/changed": "deleted", "d/moved": "created", "moded": "changed", "gone": "deleted", "new\nline": "created",
        "tree": "created", "tree/a": "created", "tree/a/b": "created", "tree/a/b/c": "created", "link": "created",
        "end": "created",
    }
    await box.exec("echo x >>w/tree/a/b/c; mv w/tree elsewhere; echo x >>elsewhere/a/b/c; rm w/end; touch w/last")
    told = {event.path.removeprefix("/workspace/w/"): event.kind for event in await seen_until(events, "last")}
    assert told["tree"] == "deleted"
    assert not any("elsewhere" in path for path in told)
    await events.aclose()


async def test_a_flood_is_cut_off_and_said(box: NativeSandbox) -> None:
    """While a process makes events without end that nobody reads, nothing grows here and others are served.

    Whoever reads then is told of the loss, and of what happens afterwards.
    """
    python = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), None)
    if python is None:
        pytest.skip("the host's /usr has no python3: apt install python3")
    await box.exec("mkdir -p w/d; cd w/d; touch $(seq 0 2999)")
    events = await armed(box, "w")
    flood = await box.start([python, "-c", FLOOD])
    started, slowest = time.monotonic(), 0.0
    while time.monotonic() - started < 2.0:
        before = time.monotonic()
        assert (await box.exec("true")).exit_code == 0
        slowest = max(slowest, time.monotonic() - before)
    assert len(events._events) == 0
    assert slowest < _WAIT_S  # served at all: how fast is the machine's affair
    await flood.kill()
    await box.exec("rm -rf w/d; mkdir -p w/later")
    reading = asyncio.create_task(seen_until(events, "end"))
    while not reading.done():
        await box.exec("touch w/later/end; rm w/later/end; touch w/later/end")
        await asyncio.sleep(0.1)
    assert "overflow" in {event.kind for event in await reading}
    assert len(events._events) < 10_000
    await events.aclose()


async def test_a_closed_watch_leaves_nothing(box: NativeSandbox) -> None:
    """Closing, also twice, also while somebody waits, ends the helper and gives back every descriptor."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert helpers(box) == 0
    for _ in range(3):
        events = await armed(box, ".")
        assert helpers(box) == 1
        await drain(events)
        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0.01)
        await events.aclose()
        await events.aclose()
        with pytest.raises(StopAsyncIteration):
            await waiting
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    forgotten = box.watch(".")
    del forgotten
    for _ in range(200):
        if helpers(box) == 0:
            break
        await asyncio.sleep(0.02)
    assert helpers(box) == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_stopped_watcher_ends_with_its_watch(box: NativeSandbox) -> None:
    """A process inside that stops the helper gains nothing: closing ends it all the same."""
    events = await armed(box, ".")
    (helper,) = children(box.pid)
    os.kill(helper, signal.SIGSTOP)
    await events.aclose()
    for _ in range(200):
        if helpers(box) == 0:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the helper stays")


async def test_a_watch_outlives_its_helper(box: NativeSandbox) -> None:
    """Where all processes of the box are ended the watch goes on, and says that it lost events."""
    events = await armed(box, ".")
    await box.kill_all()
    reading = asyncio.create_task(seen_until(events, "after"))
    while not reading.done():
        await box.exec("touch after; rm after; touch after")
        await asyncio.sleep(0.1)
    assert "overflow" in {event.kind for event in await reading}
    await events.aclose()


async def test_a_watch_ends_with_what_it_watches(box: NativeSandbox) -> None:
    """The end of the directory is told and ends the events; the end of the box is SandboxDied; no directory is none."""
    await box.exec("mkdir -p w; touch file; ln -s w link")
    events = await armed(box, "link")
    await box.exec("rm -r w")
    async with asyncio.timeout(_WAIT_S):
        told = [event async for event in events]
    assert told[-1] == FileEvent("/workspace/link", "deleted")
    with pytest.raises(FileNotFoundError):
        await anext(box.watch("missing"))
    with pytest.raises(NotADirectoryError):
        await anext(box.watch("file"))
    with pytest.raises(OSError, match="NUL"):
        await anext(box.watch("a\0b"))
    events = await armed(box, ".")
    waiting = asyncio.create_task(anext(events))
    await asyncio.sleep(0.01)
    await box.close()
    with pytest.raises(SandboxDied):
        await waiting
    with pytest.raises(SandboxDied):
        box.watch(".")


def test_one_batch_tells_the_last_state(tmp_path: Path) -> None:
    """What came and went is not told, what is new stays new though it changed, and what was replaced has changed."""
    out, inner = os.pipe()
    try:
        watched = watch.Watch(str(tmp_path), inner)
        for path, *kinds in (("a", "created", "changed", "deleted"), ("b", "created", "changed"),
                             ("c", "deleted", "created"), ("d", "changed", "deleted"), ("e", "changed", "changed")):
            for kind in kinds:
                watched._note(path, kind)
        assert watched._told == {"b": "created", "c": "changed", "d": "deleted", "e": "changed"}
        os.close(watched._queue)
    finally:
        os.close(out)
        os.close(inner)
