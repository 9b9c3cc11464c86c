"""Whatever is done to sandboxes, in whatever order, their files are those of a model that only has a dictionary."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule, run_state_machine_as_test

from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.conformance import MemoryBlobs
from woodshed.sandbox.images import Images
from woodshed.sandbox.native import snapshots
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.snapshots import NativeSnapshot

Entry = tuple[str, int, bytes]
"""Kind, mode, content or target."""
World = dict[str, Entry]
"""Entries by path below the working directory; a parent of each is a directory of the same world."""

NAMES = ("a", "b", "c", "ü x", "-n", ".wh.a")
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
MODES = st.sampled_from([0o000, 0o600, 0o644, 0o755])
START: World = {
    "a": ("dir", 0o755, b""), "a/b": ("dir", 0o755, b""), "a/b/c": ("file", 0o644, b"start"),
    "b": ("file", 0o600, b"start"), "c": ("dir", 0o700, b""), "c/a": ("link", 0o777, b"../b"),
}
SPEC = EnvironmentSpec(
    setup="mkdir -p a/b c; printf start >a/b/c; printf start >b; chmod 600 b; chmod 700 c; ln -s ../b c/a")


def parent_is_directory(world: World, path: str) -> bool:
    parent = path.rpartition("/")[0]
    return not parent or world.get(parent, ("", 0, b""))[0] == "dir"


def without(world: World, path: str) -> World:
    return {name: entry for name, entry in world.items() if name != path and not name.startswith(path + "/")}


@dataclass(eq=False)
class Live:
    """A sandbox and what must be in it."""

    box: NativeSandbox
    world: World


@dataclass(eq=False)
class Taken:
    """A snapshot and what must be in its forks."""

    snapshot: NativeSnapshot
    world: World


async def look(box: NativeSandbox) -> World:
    """What is there, as tar sees it."""
    result = await box.exec(["tar", "-cf", "-", "--format=pax", "."], output_bytes=10_000_000)
    # 1: a directory changed meanwhile. overlayfs notes something in one when it is read for the first time.
    assert result.exit_code in (0, 1), result.stderr
    found: World = {}
    with tarfile.open(fileobj=io.BytesIO(result.stdout)) as tar:
        for member in tar:
            path = member.name.removeprefix("./")
            if path == ".":
                continue
            kind = "dir" if member.isdir() else "link" if member.issym() else "file"
            file = tar.extractfile(member) if member.isfile() else None
            content = file.read() if file else member.linkname.encode() if kind == "link" else b""
            found[path] = kind, member.mode, content
    return found


class Sandboxes(RuleBasedStateMachine):
    """Sandboxes, snapshots and forks, each beside its model."""

    engine: ClassVar[NativeEngine]
    loop: ClassVar[asyncio.AbstractEventLoop]
    lives, snapshots = Bundle("lives"), Bundle("snapshots")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Live] = []
        self.held: list[Taken] = []

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def run(self, live: Live, *commands: str) -> None:
        result = self.do(live.box.exec(" && ".join(commands)))
        assert result.exit_code == 0, result

    def born(self, box: NativeSandbox, world: World) -> Live:
        self.open.append(live := Live(box, dict(world)))
        return live

    @rule(target=lives)
    def create(self) -> Live:
        return self.born(self.do(self.engine.create(SPEC, SandboxPolicy())), START)

    @rule(live=lives, path=PATHS, content=st.binary(max_size=20), mode=MODES, by_call=st.booleans())
    def write(self, live: Live, path: str, content: bytes, mode: int, by_call: bool) -> None:
        if live not in self.open or not parent_is_directory(live.world, path):
            return
        kind = live.world.get(path, ("file", 0, b""))[0]
        if kind == "dir":
            return
        if kind == "link":
            self.run(live, f"rm -- '{path}'")
        if by_call:
            self.do(live.box.write(path, content, mode=mode))
        else:
            octal = "".join(f"\\{byte:03o}" for byte in content)
            self.run(live, f"printf '{octal}' >'./{path}'", f"chmod {mode:o} './{path}'")
        live.world[path] = "file", mode, content

    @rule(live=lives, path=PATHS, mode=MODES)
    def mkdir(self, live: Live, path: str, mode: int) -> None:
        if live in self.open and path not in live.world and parent_is_directory(live.world, path):
            self.run(live, f"mkdir -m {mode:o} './{path}'")
            live.world[path] = "dir", mode, b""

    @rule(live=lives, path=PATHS, to=st.sampled_from(["a", "../b", "/etc/passwd", "nowhere"]))
    def symlink(self, live: Live, path: str, to: str) -> None:
        if live in self.open and path not in live.world and parent_is_directory(live.world, path):
            self.run(live, f"ln -s {to} './{path}'")
            live.world[path] = "link", 0o777, to.encode()

    @rule(live=lives, path=PATHS)
    def delete(self, live: Live, path: str) -> None:
        if live in self.open and parent_is_directory(live.world, path):
            self.run(live, f"rm -rf './{path}'")
            live.world = without(live.world, path)

    @rule(live=lives, path=PATHS, other=PATHS)
    def move(self, live: Live, path: str, other: str) -> None:
        if live not in self.open or path not in live.world or other in live.world or f"{other}/".startswith(f"{path}/"):
            return
        if parent_is_directory(live.world, path) and parent_is_directory(live.world, other):
            self.run(live, f"mv -T './{path}' './{other}'")
            moved = {other + name[len(path):]: entry for name, entry in live.world.items()
                     if name == path or name.startswith(path + "/")}
            live.world = without(live.world, path) | moved

    @rule(live=lives, path=PATHS, mode=MODES)
    def chmod(self, live: Live, path: str, mode: int) -> None:
        if live in self.open and live.world.get(path, ("",))[0] in ("file", "dir"):
            self.run(live, f"chmod {mode:o} './{path}'")
            kind, _, content = live.world[path]
            live.world[path] = kind, mode, content

    @rule(live=lives)
    def background(self, live: Live) -> None:
        """From now on something runs, and snapshots are copies."""
        if live in self.open:
            self.do(live.box.start("cd a 2>/dev/null; exec sleep 600"))

    @rule(live=lives)
    def kill(self, live: Live) -> None:
        if live in self.open:
            self.do(live.box.kill_all())

    @rule(target=snapshots, live=lives)
    def snapshot(self, live: Live) -> Any:
        if live not in self.open:
            return multiple()
        self.held.append(taken := Taken(self.do(live.box.snapshot()), dict(live.world)))
        return taken

    @rule(target=lives, taken=snapshots, n=st.integers(1, 2))
    def fork(self, taken: Taken, n: int) -> Any:
        if taken not in self.held:
            return multiple()
        return multiple(*(self.born(box, taken.world) for box in self.do(self.engine.fork(taken.snapshot, n))))

    @rule(target=snapshots, taken=snapshots)
    def carry(self, taken: Taken) -> Any:
        """Exported and adopted again it is the same snapshot."""
        if taken not in self.held:
            return multiple()
        blobs = MemoryBlobs()
        manifest = self.do(taken.snapshot.export(blobs))
        adopted = self.do(self.engine.adopt(manifest, blobs, SPEC))
        assert adopted.digest == manifest.digest == taken.snapshot.digest
        self.held.append(again := Taken(adopted, taken.world))
        return again

    @rule(live=lives)
    def restore(self, live: Live) -> None:
        """What its changes make of a fresh sandbox is what it is."""
        if live not in self.open:
            return
        blobs = MemoryBlobs()
        self.do(live.box.kill_all())
        changes = self.do(live.box.changes(blobs))
        assert not changes.refused
        again = self.do(self.engine.create(SPEC, SandboxPolicy(), restore=(changes, blobs)))
        assert self.do(look(again)) == live.world
        self.do(again.close())

    @rule(live=lives)
    def check(self, live: Live) -> None:
        if live in self.open:
            assert self.do(look(live.box)) == live.world

    @rule(live=consumes(lives))
    def close(self, live: Live) -> None:
        if live in self.open:
            self.open.remove(live)
            self.do(live.box.close())

    @rule(taken=consumes(snapshots))
    def release(self, taken: Taken) -> None:
        if taken in self.held:
            self.held.remove(taken)
            self.do(taken.snapshot.release())

    def teardown(self) -> None:
        for live in self.open:
            assert self.do(look(live.box)) == live.world
            self.do(live.box.close())
        for taken in self.held:
            (box,) = self.do(self.engine.fork(taken.snapshot))
            assert self.do(look(box)) == taken.world
            self.do(box.close())
            self.do(taken.snapshot.release())
        shelf = self.engine._opening.result().shelf if self.engine._opening else None
        if shelf is not None:
            self.do(shelf.close())
            assert list(shelf.folder.glob("*")) == []


@pytest.fixture
def engine(shed_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeEngine]:
    """An engine on a loop of its own, as the machine's rules are plain functions; it merges layers early."""
    monkeypatch.setattr(snapshots, "_MERGE_FROM", 3)
    Sandboxes.loop = asyncio.new_event_loop()
    Sandboxes.engine = NativeEngine(shed_home, images=Images(shed_home))
    yield Sandboxes.engine
    Sandboxes.loop.run_until_complete(Sandboxes.engine.close())
    Sandboxes.loop.run_until_complete(Sandboxes.loop.shutdown_default_executor())
    Sandboxes.loop.close()


def test_files_are_those_of_the_model(engine: NativeEngine, shed_home: Path) -> None:
    """Random writes, links, moves, snapshots, forks, exports, kills and closes never differ from the model's files."""
    run_state_machine_as_test(Sandboxes, settings=settings(
        max_examples=12, stateful_step_count=25, deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]))
