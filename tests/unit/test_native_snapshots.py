"""Snapshots of native sandboxes: a live root is exchanged, layers are counted and merged."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from woodshed.errors import EnvironmentFault, SandboxDied
from woodshed.model import (
    Change,
    ChangeKind,
    ChangeSet,
    EnvironmentSpec,
    SandboxPolicy,
    Upload,
)
from woodshed.model.policy import DirectoryRule
from woodshed.sandbox.conformance import MemoryBlobs
from woodshed.sandbox.conformance.snapshots import look
from woodshed.sandbox.images import Images
from woodshed.sandbox.native import snapshots
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.layers import Layer
from woodshed.sandbox.native.squash import squash

SPEC, POLICY = EnvironmentSpec(), SandboxPolicy()


@pytest.fixture
async def engine(shed_home: Path, images: Images) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


@pytest.fixture
async def box(engine: NativeEngine) -> NativeSandbox:
    return await engine.create(SPEC, POLICY)


async def out(box: NativeSandbox, command: str) -> str:
    result = await box.exec(command)
    assert result.exit_code == 0, result
    return result.stdout.decode()


def kept(home: Path) -> list[str]:
    """Layers that lie in the home's engines."""
    return sorted(path.name for path in (home / "sandboxes").glob("*/layers/*"))


# -- the exchange of a live root ---------------------------------------------------------------------------------------


async def test_a_new_root_keeps_what_is_mounted(box: NativeSandbox) -> None:
    """Memory file systems with their files, read-only parts and masks are there afterwards, and nothing else."""
    seen = ("sort -k5 /proc/self/mountinfo | cut -d' ' -f5,6 | grep -v '^/ '; cat /tmp/a /run/b /dev/shm/c; ls -l /dev;"
            " ls /..")
    await out(box, "echo a >/tmp/a; echo b >/run/b; echo c >/dev/shm/c; chmod 711 /; mkdir /made")
    before = await out(box, seen)
    for _ in range(3):
        await out(box, "echo x >>f")
        await box.snapshot()
    assert await out(box, seen) == before
    rest = "stat -c %a /; pwd; grep -c ' / / ' /proc/self/mountinfo; cat f"
    assert await out(box, rest) == "711\n/workspace\n1\nx\nx\nx\n"
    assert (await box.exec("touch /usr/x || mknod d b 1 1 || mount -t tmpfs t /mnt")).exit_code


async def test_nothing_is_copied_where_nothing_runs(box: NativeSandbox, shed_home: Path) -> None:
    """The very directory becomes the layer; beside a running command it is copied, and the box keeps its own."""
    await out(box, "echo x >f")
    inode = (box.world.folder / "u/workspace/f").stat().st_ino
    snapshot = await box.snapshot()
    assert (snapshot.layers[0].path / "workspace/f").stat().st_ino == inode
    assert list((box.world.folder / "u").iterdir()) == []
    await box.start("sleep 600")
    await out(box, "echo y >g; ln g h; truncate -s 1G hole; setfattr -n user.a -v b g || true; chmod 000 f")
    copied = await box.snapshot()
    assert len(copied.layers) == 2
    layer = copied.layers[0].path / "workspace"
    assert (layer / "g").stat().st_ino == (layer / "h").stat().st_ino
    assert (layer / "g").stat().st_ino != (box.world.folder / "u/workspace/g").stat().st_ino
    assert (layer / "hole").stat().st_blocks == 0
    assert stat.S_IMODE((layer / "f").lstat().st_mode) == 0
    await box.kill_all()
    await box.snapshot()
    assert len(kept(shed_home)) == 3


async def test_calls_meanwhile_wait(box: NativeSandbox) -> None:
    """Commands, files and snapshots asked for at once all come true, whatever their order."""

    async def work(number: int) -> None:
        for step in range(5):
            await box.write(f"f{number}", str(step).encode())
            assert await out(box, f"cat f{number}") == str(step)

    async def snap() -> list[bytes]:
        taken = [await box.snapshot() for _ in range(6)]
        return [snapshot.id.encode() for snapshot in taken]

    *_, first, second = await asyncio.gather(*(work(number) for number in range(4)), snap(), snap())
    assert len({*first, *second}) == 12  # type: ignore[misc]
    assert await out(box, "cat f*") == "4444"


async def test_what_stands_still_stays_so(box: NativeSandbox) -> None:
    """A frozen sandbox is frozen after a snapshot, too."""
    process = await box.start("while sleep 0.01; do echo x >>log; done")
    await out(box, "while [ ! -s log ]; do sleep 0.01; done")
    await box.freeze()
    await box.snapshot()
    size = (await box.stat("log")).size
    await asyncio.sleep(0.1)
    assert (await box.stat("log")).size == size
    await box.thaw()
    await out(box, f"while [ $(stat -c %s log) -le {size} ]; do sleep 0.01; done")
    await process.kill()


async def test_a_policys_mounts_stay_in_force(engine: NativeEngine) -> None:
    """Where rules bind the root it is not exchanged: a snapshot is a copy, and its forks have the rules, too."""
    policy = SandboxPolicy(directories=(DirectoryRule(path="/etc", access="read"),))
    box = await engine.create(SPEC, policy)
    await out(box, "echo x >f")
    snapshot = await box.snapshot()
    for one in (box, *await engine.fork(snapshot, 2)):
        assert (await out(one, "cat f; touch /etc/x 2>/dev/null || echo refused")) == "x\nrefused\n"


async def test_what_is_sealed_stays_sealed(engine: NativeEngine, tmp_path: Path) -> None:
    """Read-only uploads are part of the new root as of the old one: there, closed to everybody, on one file system."""
    (tmp_path / "seed").mkdir()
    (tmp_path / "seed/f").write_text("seed")
    uploads = (Upload(source=tmp_path / "seed", target="/workspace/seed", read_only=True),
               Upload(source=tmp_path / "seed/f", target="/workspace/one", read_only=True))
    box = await engine.create(EnvironmentSpec(uploads=uploads), POLICY)
    await out(box, "echo x >f")
    for _ in range(3):
        await out(box, "echo x >>f")
        snapshot = await box.snapshot()
        assert box.world.stack.layers == snapshot.layers
    for one in (box, *await engine.fork(snapshot)):
        for denied in ("echo x >seed/f", "echo x >seed/new", "rm seed/f", "echo x >one", "rm -rf seed one"):
            assert (await one.exec(denied)).exit_code, denied
        assert await out(one, "cat seed/f one f; ls seed") == "seedseedx\nx\nx\nx\nf\n"
        found = await out(one, "grep ' - overlay ' /proc/self/mountinfo | cut -d' ' -f3 | sort | uniq -c | wc -l")
        assert found == "1\n"


@pytest.mark.parametrize("rename", [
    "import os; os.rename(b'/workspace/top', b'/workspace/\\xff')",
    "import os\nos.chdir('/workspace')\nfor n in range(22):\n os.mkdir('d' * 190); os.chdir('d' * 190)\n"
    "os.rename('/workspace/top', 'top')",
])
async def test_a_mount_point_out_of_reach_is_no_way_out(engine: NativeEngine, tmp_path: Path, rename: str) -> None:
    """A box that renames what lies above a mount, deep or to no UTF-8, does not end itself by that."""
    (tmp_path / "f").write_text("seed")
    spec = EnvironmentSpec(uploads=(Upload(source=tmp_path / "f", target="/workspace/top/f", read_only=True),))
    blobs = MemoryBlobs()
    restored = ChangeSet(changes=(  # opaque: a directory of the image cannot be renamed
        Change(path="/workspace/top", kind=ChangeKind.OPAQUE, mode=0o755),
        Change(path="/workspace/top/f", kind=ChangeKind.FILE, size=1, sha256=blobs.put(b"x"))))
    box = await engine.create(spec, POLICY, restore=(restored, blobs))
    assert (await box.exec(["python3", "-c", rename])).exit_code == 0
    await out(box, "echo x >g")
    with suppress(EnvironmentFault):  # too deep to be copied
        await box.snapshot()
    assert await out(box, "cat g; ls /.. | grep -cx '[0-9]' || true") == "x\n0\n"
    assert box.world.stack.layers == ()


async def test_without_a_fork_server_it_is_a_copy(box: NativeSandbox) -> None:
    """A box whose fork server is gone keeps its root, and the snapshot is right all the same."""
    await out(box, "echo x >f")
    server = box._snapshots._server
    await server.stop()
    snapshot = await box.snapshot()
    assert await out(box, "echo y >>f; cat f") == "x\ny\n"
    assert (snapshot.layers[0].path / "workspace/f").read_text() == "x\n"
    assert sorted(path.name for path in box.world.folder.iterdir()) == ["u", "w"]
    await server.ready()
    await box.snapshot()
    assert await out(box, "cat f") == "x\ny\n"


async def test_a_root_that_cannot_be_made_harms_nothing(box: NativeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the new root is refused the old one stays, nothing of the try is seen in the box, and a copy is made."""
    set_aside = snapshots.Snapshots._set_aside

    def without_scratch(self: snapshots.Snapshots) -> Layer:
        layer = set_aside(self)
        (self._world.folder / "w").rmdir()
        return layer

    await out(box, "echo x >f")
    seen = await out(box, "ls /..; cat /proc/self/mountinfo")
    monkeypatch.setattr(snapshots.Snapshots, "_set_aside", without_scratch)
    copied = await box.snapshot()
    monkeypatch.undo()
    assert await out(box, "ls /..; cat /proc/self/mountinfo") == seen
    assert box.world.stack.layers == ()
    assert (copied.layers[0].path / "workspace/f").read_text() == "x\n"
    exchanged = await box.snapshot()
    assert box.world.stack.layers == exchanged.layers
    assert await out(box, "cat f") == "x\n"


async def test_a_half_changed_root_ends_the_box(box: NativeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the change broke off in the middle the box is given up, and says so; nothing runs in half a root."""
    settle = snapshots.Snapshots._settle

    async def broken(self: snapshots.Snapshots, link: object, said: str, *rest: object) -> object:
        return await settle(self, link, "working", *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshots.Snapshots, "_settle", broken)
    await out(box, "echo x >f")
    with pytest.raises(SandboxDied, match="root could not be changed"):
        await box.snapshot()
    with pytest.raises(SandboxDied):
        await box.exec("true")


async def test_a_cancelled_snapshot_leaves_none(box: NativeSandbox, shed_home: Path) -> None:
    """The box lives on with its files, and what nobody was handed is let go of."""
    for pause_s in (0.0, 0.001, 0.002, 0.004, 0.008):
        await out(box, "echo x >>f")
        taking = asyncio.ensure_future(box.snapshot())
        await asyncio.sleep(pause_s)
        taking.cancel()
        taken = (await asyncio.gather(taking, return_exceptions=True))[0]
        if isinstance(taken, snapshots.NativeSnapshot):  # it was faster
            await taken.release()
    assert await out(box, "cat f") == "x\n" * 5
    await box.close()
    for _ in range(100):
        if not kept(shed_home):
            break
        await asyncio.sleep(0.02)
    assert kept(shed_home) == []


async def test_a_box_killed_meanwhile_has_died(engine: NativeEngine, shed_home: Path) -> None:
    """SIGKILL of PID 1 at any moment of a snapshot is SandboxDied, and nothing of it is left."""
    for pause_s in (0.0, 0.001, 0.002, 0.003, 0.004):
        box = await engine.create(SPEC, POLICY)
        await out(box, "echo x >f")
        taking = asyncio.ensure_future(box.snapshot())
        await asyncio.sleep(pause_s)
        os.kill(box.pid, signal.SIGKILL)
        taken = (await asyncio.gather(taking, return_exceptions=True))[0]
        if isinstance(taken, BaseException):
            assert isinstance(taken, SandboxDied | EnvironmentFault), taken
        else:
            await taken.release()
        await box.close()
    assert kept(shed_home) == []


async def test_close_waits_for_a_copy(engine: NativeEngine, shed_home: Path) -> None:
    """A box closed, or its engine, while its files are copied leaves nothing behind, and no thread that goes on."""
    for pause_s, closes in ((0.01, NativeSandbox.close), (0.03, NativeSandbox.close), (0.05, NativeSandbox.close),
                            (0.02, None)):
        box = await engine.create(SPEC, POLICY)
        await out(box, "i=0; while [ $i -lt 300 ]; do echo x >f$i; i=$((i+1)); done")
        await box.start("sleep 600")
        taking = asyncio.ensure_future(box.snapshot())
        await asyncio.sleep(pause_s)
        await (closes(box) if closes else engine.close())
        taken = (await asyncio.gather(taking, return_exceptions=True))[0]
        assert isinstance(taken, SandboxDied | EnvironmentFault | snapshots.NativeSnapshot), taken
        if isinstance(taken, snapshots.NativeSnapshot):
            await taken.release()
        assert kept(shed_home) == []
    assert list((shed_home / "sandboxes").iterdir()) == []


async def test_layers_go_with_their_last_user(engine: NativeEngine, box: NativeSandbox, shed_home: Path) -> None:
    """A layer lies there as long as a box or a snapshot has it, and no longer."""
    await out(box, "echo 1 >f")
    first = await box.snapshot()
    await out(box, "echo 2 >f")
    second = await box.snapshot()
    (fork,) = await engine.fork(first)
    assert len(kept(shed_home)) == 2
    await first.release()
    await second.release()
    assert len(kept(shed_home)) == 2
    await box.close()
    assert len(kept(shed_home)) == 1
    assert await out(fork, "cat f") == "1\n"
    await fork.close()
    assert kept(shed_home) == []


async def test_many_layers_become_one(engine: NativeEngine, box: NativeSandbox, shed_home: Path) -> None:
    """Beyond the number from which they are merged boxes have few again and see the same, their forks, too."""
    deepest, expected = 0, dict[str, str]()
    for number in range(70):
        gone = f"f{(number + 3) % 9}"
        await out(box, f"echo {number} >f{number % 9}; rm -f {gone}")
        expected[f"f{number % 9}"] = f"{number}"
        expected.pop(gone, None)
        snapshot = await box.snapshot()
        deepest = max(deepest, len(box.world.stack.layers))
        if number % 10 == 9:  # the next generation
            (fork,) = await engine.fork(snapshot)
            await box.close()
            box = fork
        await snapshot.release()
    assert 32 <= deepest < 70
    assert len(box.world.stack.layers) < 50
    assert await out(box, "grep . f*") == "".join(f"{name}:{text}\n" for name, text in sorted(expected.items()))
    await box.close()
    for _ in range(100):  # what is being merged meanwhile is let go of when it is done
        if not kept(shed_home):
            break
        await asyncio.sleep(0.02)
    assert kept(shed_home) == []


async def test_a_merge_is_made_once(engine: NativeEngine, box: NativeSandbox) -> None:
    """Forks of one deep snapshot share the merge of its layers; one that cannot be made is not tried again."""
    taken = []
    for number in range(33):
        await out(box, f"echo {number} >f{number}")
        taken.append(await box.snapshot())
    before, snapshot = taken[-2:]
    shelf, lowers = snapshot.shelf, box.world.lowers
    await asyncio.gather(*shelf._merging.values())
    assert [len(shelf.shortest(one.layers, lowers)) for one in (before, snapshot)] == [1, 2]
    forks = await engine.fork(snapshot, 3)
    made = shelf._made
    for fork in forks:
        await out(fork, "echo x >f")
        assert len((await fork.snapshot()).layers) <= 4
    assert shelf._made == made + 3
    assert shelf.merge(before.layers, lowers) is None
    assert await out(forks[0], "ls | wc -l") == "34\n"


# -- merging, and the kernel's view of it ------------------------------------------------------------------------------

STEPS = (
    "mkdir -p a/b c; echo 1 >a/b/f; echo 1 >c/f; ln -s f c/l; echo 1 >x; mkfifo pipe; chmod 700 a",
    "rm -r a; mkdir a; echo 2 >a/g; rm c/f; rm x; mkdir x; echo 2 >x/y; rm -r lower; touch -d @7.5 a",
    "rm -r x; echo 3 >x; rm -r c; mkdir lower; echo 3 >lower/new; mkdir -p a/b; chmod 711 lower; rm base",
    "rm -r lower; rm pipe; mkdir -p c/c/c; ln x hard; ln -s nowhere base",
)


async def test_a_merge_shows_what_the_stack_showed(engine: NativeEngine) -> None:
    """Any run of layers, merged by link or by copy, is to the kernel what the layers were."""
    spec = EnvironmentSpec(setup="mkdir -p lower/deep; echo 0 >lower/deep/f; echo 0 >lower/g; echo 0 >base")
    box = await engine.create(spec, POLICY)
    taken = []
    for step in STEPS:
        await out(box, step)
        taken.append((await box.snapshot(), await look(box)))
    last, _ = taken[-1]
    for (snapshot, seen), copy in zip((*taken, taken[-1]), (False, True, False, True, False), strict=True):
        one = Layer(last.shelf.place())
        paths = [layer.path for layer in snapshot.layers]
        assert squash(paths, box.world.lowers, one.path, copy=copy)
        merged = snapshots.NativeSnapshot(last.shelf, [one], snapshot.start, snapshot.policy)
        (fork,) = await engine.fork(merged)
        assert await look(fork) == seen
        assert "?" not in await out(fork, "ls -lR")
        await fork.close()


async def test_what_is_too_deep_is_no_copy(box: NativeSandbox) -> None:
    """A tree deeper than any path is part of a snapshot where nothing runs; no copy of it is made."""
    deep = "python3 -c \"import os\nfor _ in range(30): os.mkdir('d' * 200); os.chdir('d' * 200)\nopen('end', 'w')\""
    await out(box, deep)
    snapshot = await box.snapshot()
    await out(box, deep.replace("'d'", "'e'"))
    with pytest.raises(EnvironmentFault, match="too deep"):
        await snapshot.export(MemoryBlobs())
    await box.start("sleep 600")
    with pytest.raises(EnvironmentFault, match="too deep"):
        await box.snapshot()
    assert await out(box, "echo well") == "well\n"
