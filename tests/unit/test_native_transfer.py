"""Trees into and out of a native sandbox: whole or not at all, bounded, and past whatever the inside does meanwhile."""
# ruff: noqa: PT011
# (Which OSError the kernel gives differs with the way taken; that one is given is the point.)

from __future__ import annotations

import asyncio
import errno
import io
import os
import resource
import signal
import stat
import struct
import tarfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from woodshed.errors import SandboxDied, UsageError
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy, Upload
from woodshed.sandbox.conformance import MemoryBlobs
from woodshed.sandbox.native import landing
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.inside import frames

HEAD, PIECE = struct.Struct("<cHHQ"), struct.Struct("<QI")


@pytest.fixture
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home)
    yield made
    await made.close()


@pytest.fixture
async def box(engine: NativeEngine) -> NativeSandbox:
    return await engine.create(EnvironmentSpec(), SandboxPolicy(limits=Limits(disk_mb=64)))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# -- what a hostile stream can do --------------------------------------------------------------------------------------


def frame(kind: bytes, path: bytes, size: int = 0, mode: int = 0o644, after: bytes = b"") -> bytes:
    return HEAD.pack(kind, mode, len(path), size) + path + after


def content(data: bytes) -> bytes:
    return PIECE.pack(0, len(data)) + data + PIECE.pack(0, 0)


TOP, END = frame(b"d", b"", mode=0o755), frame(b"e", b"")


def land(stream: bytes, target: Path, max_bytes: int = 1 << 20) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source = io.BytesIO(stream)
    landing.land(frames.Frames(frames.Reader(source.read)), target, max_bytes)


HOSTILE = {
    "climbs": TOP + frame(b"f", b"../out", 1, after=content(b"x")) + END,
    "climbs_deeper": TOP + frame(b"d", b"a") + frame(b"f", b"a/../../out", 1, after=content(b"x")) + END,
    "is_absolute": TOP + frame(b"f", b"/tmp/woodshed-out", 1, after=content(b"x")) + END,
    "has_a_nul": TOP + frame(b"f", b"a\0b", 1, after=content(b"x")) + END,
    "has_an_endless_name": TOP + frame(b"d", b"n" * 256) + END,
    "has_an_endless_path": TOP + frame(b"d", b"n/" * 2001 + b"n") + END,
    "passes_a_link": (TOP + frame(b"l", b"l", 4, after=b"/tmp")
                      + frame(b"f", b"l/woodshed-out", 1, after=content(b"x")) + END),
    "passes_a_link_to_itself": TOP + frame(b"l", b"l", 1, after=b".") + frame(b"d", b"l/woodshed-out") + END,
    "replaces_a_link": TOP + frame(b"l", b"l", 4, after=b"/tmp") + frame(b"f", b"l", 1, after=content(b"x")) + END,
    "replaces_a_directory": TOP + frame(b"d", b"a") + frame(b"l", b"a", 4, after=b"/tmp") + END,
    "has_the_top_twice": TOP + TOP + END,
    "has_no_top": frame(b"f", b"a", 1, after=content(b"x")) + END,
    "is_below_a_file": frame(b"f", b"", 1, after=content(b"x")) + frame(b"f", b"a", 1, after=content(b"x")) + END,
    "is_below_a_link": frame(b"l", b"", 4, after=b"/tmp") + frame(b"f", b"out", 1, after=content(b"x")) + END,
    "is_setuid": TOP + frame(b"f", b"a", 1, mode=0o4755, after=content(b"x")) + END,
    "is_of_no_kind": TOP + frame(b"c", b"a") + END,
    "writes_beyond_its_size": TOP + frame(b"f", b"a", 1, after=content(b"xx")) + END,
    "writes_at_the_far_end": TOP + frame(b"f", b"a", 1, after=PIECE.pack((1 << 64) - 1, 1) + b"x") + END,
    "is_too_large": TOP + frame(b"f", b"a", (1 << 20) + 1, after=PIECE.pack(0, 0)) + END,
    "is_large_in_sum": TOP + b"".join(frame(b"f", b"%d" % n, 1 << 19, after=PIECE.pack(0, 0)) for n in range(3)) + END,
    "is_of_no_size": TOP + frame(b"f", b"a", (1 << 64) - 1, after=PIECE.pack(0, 0)) + END,
    "links_to_nothing": TOP + frame(b"l", b"a", 0) + END,
    "links_with_a_nul": TOP + frame(b"l", b"a", 3, after=b"a\0b") + END,
    "links_without_end": TOP + frame(b"l", b"a", 1 << 40) + END,
    "is_cut_off": TOP + frame(b"f", b"a", 1, after=content(b"x")),
    "is_cut_off_in_a_file": TOP + frame(b"f", b"a", 5, after=PIECE.pack(0, 5) + b"xx"),
    "is_empty": b"",
    "is_no_tree": END,
    "is_garbage": bytes(range(256)) * 40,
}


@pytest.mark.parametrize("stream", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_stream_leaves_nothing(stream: bytes, tmp_path: Path) -> None:
    """Whatever a stream holds that is no tree of plain entries within bounds, nothing of it stays on the host."""
    with pytest.raises(OSError):
        land(stream, tmp_path / "deep" / "er" / "target")
    assert list(tmp_path.rglob("*")) == [tmp_path / "deep", tmp_path / "deep" / "er"]
    assert not Path("/tmp/woodshed-out").exists()


def test_a_plain_stream_lands(tmp_path: Path) -> None:
    """The control of the above: the same frames without the offence are a tree, with modes and holes as sent."""
    stream = (TOP + frame(b"d", b"a", mode=0o500) + frame(b"f", b"a/f", 3, mode=0o640, after=content(b"abc"))
              + frame(b"l", b"l", 4, after=b"/tmp")
              + frame(b"f", b"s", 1 << 20, after=PIECE.pack(1 << 19, 1) + b"x" + PIECE.pack(0, 0)) + END)
    land(stream, tmp_path / "target", max_bytes=(1 << 20) + 3)
    top = tmp_path / "target"
    assert (top / "a" / "f").read_bytes() == b"abc"
    assert [stat.S_IMODE((top / name).lstat().st_mode) for name in (".", "a", "a/f")] == [0o755, 0o500, 0o640]
    assert (top / "s").read_bytes() == bytes(1 << 19) + b"x" + bytes((1 << 19) - 1)
    assert (top / "s").stat().st_blocks * 512 < 1 << 19
    (top / "a").chmod(0o700)


def test_a_flood_of_entries_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty directories without number are refused at the bound, and those before it removed again."""
    monkeypatch.setattr(frames, "ENTRIES", 50)
    with pytest.raises(OSError, match="more than 50 entries") as caught:
        land(TOP + b"".join(frame(b"d", b"%d" % n) for n in range(100)) + END, tmp_path / "target")
    assert caught.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def test_what_appears_at_the_target_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    """A file, an empty folder or a link that others put at the target while a tree arrives stays; the tree fails."""
    target = tmp_path / "target"
    makers: list[Callable[[], object]] = [
        target.touch, target.mkdir, lambda: target.symlink_to("/nowhere"), lambda: target.symlink_to(tmp_path),
    ]
    for make in makers:
        for top in (TOP, frame(b"f", b"", 1, after=content(b"x")), frame(b"l", b"", 1, after=b"x")):
            stream = top + END
            pieces = iter((stream[:3], b"now", stream[3:]))

            def read(size: int, pieces: Iterator[bytes] = pieces, make: Callable[[], object] = make) -> bytes:
                piece = next(pieces, b"")
                if piece == b"now":
                    make()
                    piece = next(pieces)
                return piece

            with pytest.raises(FileExistsError):
                landing.land(frames.Frames(frames.Reader(read)), target, 100)
            assert [path.name for path in tmp_path.iterdir()] == ["target"]
            kept = target.lstat()
            target.rmdir() if stat.S_ISDIR(kept.st_mode) else target.unlink()


# -- with a box --------------------------------------------------------------------------------------------------------


async def test_large_trees_go_through_little_memory(box: NativeSandbox, tmp_path: Path) -> None:
    """A tree several times what the pipes hold goes in and comes out, and our memory does not grow with it."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(12):
        (source / str(number)).write_bytes(os.urandom(1 << 16) * 64)
    await box.upload(source / "0", "warm")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await box.upload(source, "t")
    await box.download("t", tmp_path / "back")
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb < 24_000  # of 48 MB
    for number in range(12):
        assert (tmp_path / "back" / str(number)).read_bytes() == (source / str(number)).read_bytes()


async def test_the_first_process_serves_others_meanwhile(box: NativeSandbox, tmp_path: Path) -> None:
    """While an archive trickles in, commands run and files are read."""
    go = threading.Event()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("file")
        member.size = 100_000
        archive.addfile(member, io.BytesIO(bytes(100_000)))

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 50_000:
                go.wait(20)
            return super().read(10_000)

    sending = asyncio.create_task(box.upload_tar(Slow(packed.getvalue()), "t"))
    for _ in range(5):
        assert (await box.exec("echo well")).stdout == b"well\n"
    await box.write("x", b"x")
    assert await box.read("x") == b"x"
    assert not sending.done()
    go.set()
    await sending
    assert (await box.stat("t/file")).size == 100_000


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_stopped_helper_is_cancelled(box: NativeSandbox, tmp_path: Path, direction: str) -> None:
    """A process inside that stops the helper gains nothing: who waits may give up, and nothing is left of it."""
    (tmp_path / "big").write_bytes(bytes(8 << 20))
    await box.upload(tmp_path / "big", "big")
    held, threads = descriptors(), threading.active_count()
    stopper = await box.start(
        "while true; do for p in /proc/[0-9]*; do p=${p#/proc/}; test $p = 1 -o $p = $$ || kill -STOP $p; done; done"
        " 2>/dev/null")
    await asyncio.sleep(0.3)
    for _ in range(50):  # one that is done before it is seen is no example
        moving = box.upload(tmp_path / "big", "again") if direction == "in" else box.download("big", tmp_path / "out")
        try:
            await asyncio.wait_for(moving, 2.0)
        except (TimeoutError, OSError):
            break
        (tmp_path / "out").unlink(missing_ok=True)
    else:
        pytest.fail("no helper was stopped")
    await stopper.kill()
    assert [path.name for path in tmp_path.iterdir()] == ["big"]
    for _ in range(100):
        if descriptors() <= held and threading.active_count() <= threads:
            break
        await asyncio.sleep(0.05)
    assert descriptors() <= held
    assert (await box.exec("echo well")).stdout == b"well\n"


async def test_a_dying_box_leaves_nothing_half_received(engine: NativeEngine, tmp_path: Path) -> None:
    """A box that is killed, or kills its own processes, while it sends: an error, and no trace at the target."""
    for way in ("kill_all", "death", "close"):
        box = await engine.create(EnvironmentSpec(), SandboxPolicy())
        await box.exec("mkdir t; for i in 1 2 3 4 5 6; do head -c 8000000 /dev/urandom >t/$i; done")
        receiving = asyncio.create_task(box.download("t", tmp_path / "out"))
        while not list(tmp_path.glob(".out.*/tree/1")):
            await asyncio.sleep(0)
            assert not receiving.done()
        if way == "kill_all":
            await box.kill_all()
        elif way == "death":
            os.kill(box.pid, signal.SIGKILL)
        else:
            await box.close()
        with pytest.raises(OSError if way == "kill_all" else (SandboxDied, OSError)):
            await receiving
        assert list(tmp_path.iterdir()) == []
        await box.close()


async def test_a_directory_swapped_for_a_link_sends_nothing_of_the_outside(box: NativeSandbox, tmp_path: Path) -> None:
    """While a directory is swapped for a link to another, a download never holds a file from behind the link."""
    await box.exec("mkdir -p t secret; for i in $(seq 50); do mkdir t/$i; echo own >t/$i/file; done;"
                   " echo x >secret/file; echo x >secret/hidden")
    swapper = await box.start("while true; do for i in $(seq 50); do mv t/$i b; ln -s ../secret t/$i; rm t/$i;"
                              " mv b t/$i; done; done 2>/dev/null")
    for turn in range(15):
        await box.download("t", tmp_path / str(turn))
        for path in (tmp_path / str(turn)).rglob("*"):
            assert path.name != "hidden"
            if path.name == "file" and not path.parent.is_symlink():
                assert path.read_bytes() == b"own\n"
    await swapper.kill()


async def test_nothing_of_proc_or_devices_comes_out(box: NativeSandbox, tmp_path: Path) -> None:
    """/proc is refused by itself and left out of what holds it; of /dev only folders and links come."""
    for path in ("/proc", "/proc/1/environ", "/proc/self", "/proc/1/root/etc"):
        with pytest.raises(OSError):
            await box.download(path, tmp_path / "p")
        with pytest.raises(OSError):
            await box.download_tar(path, io.BytesIO())
    await box.download("/dev", tmp_path / "dev")
    assert {stat.S_IFMT(path.lstat().st_mode) for path in (tmp_path / "dev").rglob("*")} == {stat.S_IFDIR, stat.S_IFLNK}


async def test_no_user_of_the_host_reaches_a_setuid_file_of_a_box(box: NativeSandbox, tmp_path: Path) -> None:
    """What a box's root marks setuid lies where nobody else may enter, and comes out without the mark.

    The control: the mark is really on the host's disk, and a copy that keeps it has it.
    """
    await box.exec("cp /usr/bin/id suid; chmod 6755 suid")
    on_disk = box.world.folder / "u" / "workspace" / "suid"
    assert on_disk.stat().st_mode & 0o6000 == 0o6000
    (tmp_path / "kept").write_bytes(on_disk.read_bytes())
    (tmp_path / "kept").chmod(stat.S_IMODE(on_disk.stat().st_mode))
    assert (tmp_path / "kept").stat().st_mode & 0o6000
    closed = [folder for folder in on_disk.parents if stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0]
    assert any(folder.name == "sandboxes" for folder in closed)
    await box.download("suid", tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "out").stat().st_uid == os.geteuid()


# -- writes ------------------------------------------------------------------------------------------------------------


async def test_a_write_that_fails_leaves_what_was_there(box: NativeSandbox) -> None:
    """A file larger than the limit, small or large, through the first process or a helper, is refused in whole."""
    for size in (100, 3 << 20):
        await box.write("file", b"o" * size)
        with pytest.raises(OSError):
            await box.write("file", bytes(80 << 20))
        assert await box.read("file") == b"o" * size
    assert [entry.name for entry in await box.list(".")] == ["file"]


async def test_a_write_keeps_owner_and_other_names(box: NativeSandbox) -> None:
    """The owner of a replaced file stays, a further name keeps the old content, and a dangling link gets its file."""
    await box.exec("echo old >file; ln file twin; (chown 7:8 file || true) 2>/dev/null; ln -s made dangling;"
                   " mkdir d; ln -s d dir; ln -s loop loop")
    owner = (await box.exec("stat -c %u:%g file")).stdout
    await box.write("file", b"new", mode=0o751)
    assert (await box.exec("stat -c '%u:%g' file; stat -c %a file; cat twin")).stdout == owner + b"751\nold\n"
    await box.write("dangling", b"made")
    assert await box.read("made") == b"made"
    await box.write("dir/x", b"x")
    assert await box.read("d/x") == b"x"
    for path in ("loop", "d", "dir", "d/", "d/.", "d/..", "/", "/proc/1/exe", "/proc/self/fd/0"):
        with pytest.raises(OSError):
            await box.write(path, b"x")


async def test_a_reader_with_a_lease_does_not_hold_up_a_write(box: NativeSandbox) -> None:
    """A process that holds a lease on the file (which makes others wait for it) keeps nobody from replacing it."""
    await box.write("file", b"old")
    lease = ("import fcntl, os, time; fcntl.fcntl(os.open('file', 0), fcntl.F_SETLEASE, fcntl.F_RDLCK);"
             " open('held', 'w'); time.sleep(60)")
    python = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), None)
    if python is None:
        pytest.skip("the host's /usr has no python3: apt install python3")
    process = await box.start([python, "-c", lease])
    await box.exec("while ! test -e held; do sleep 0.02; done", timeout_s=20)
    async with asyncio.timeout(15):
        await box.write("file", b"new")
    assert await box.read("file") == b"new"
    await process.kill()


# -- uploads -----------------------------------------------------------------------------------------------------------


async def test_an_upload_says_what_kept_it(box: NativeSandbox, tmp_path: Path) -> None:
    """The source's trouble is a UsageError, the target's an OSError, by pipe as by memory file; all is given back."""
    held = descriptors()
    large = tmp_path / "large"
    large.mkdir()
    for number in range(80):
        (large / f"{number:03}").write_bytes(b"x")
    os.mkfifo(large / "zzz")
    with pytest.raises(UsageError, match="zzz"):
        await box.upload(large, "t")
    (large / "zzz").unlink()
    await box.exec("mkdir -p u/005; touch file")
    with pytest.raises(IsADirectoryError):
        await box.upload(large, "u")
    with pytest.raises(OSError):
        await box.upload(large, "file/below")
    with pytest.raises(OSError):
        await box.upload(large, "/usr/nothing")
    assert descriptors() == held


class _Slow(io.BytesIO):
    """An archive that comes over a slow line."""

    def read(self, size: int | None = -1, /) -> bytes:
        """The next piece, after a moment."""
        time.sleep(0.02)
        return super().read(size)


async def test_what_exceeds_the_disk_limit_is_an_error(engine: NativeEngine, tmp_path: Path) -> None:
    """A tree or an archive larger than the box may hold ends in an error that says so, and the box lives on."""
    box = await engine.create(EnvironmentSpec(), SandboxPolicy(limits=Limits(disk_mb=10)))
    source = tmp_path / "source"
    source.mkdir()
    megabyte = os.urandom(1 << 20)
    for number in range(300):  # the limit is kept by looking: this takes longer than a look is away
        (source / str(number)).write_bytes(megabyte)
    with pytest.raises(OSError, match="limit") as caught:
        await box.upload(source, "t")
    assert caught.value.errno == errno.EDQUOT
    assert (await box.exec("rm -r t; echo well")).stdout == b"well\n"
    packed = _Slow()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(source / "0", "t/0")
        for number in range(1, 60):
            archive.add(source / "0", f"t/{number}")
    packed.seek(0)
    with pytest.raises(OSError, match="limit"):
        await box.upload_tar(packed, ".")
    assert (await box.exec("rm -r t; echo well")).stdout == b"well\n"


async def test_a_sealed_upload_is_sealed_in_forks_and_beyond_a_setup(engine: NativeEngine, tmp_path: Path) -> None:
    """What is read-only stays so in setup, after a snapshot, and in what is forked from it."""
    (tmp_path / "file").write_bytes(b"start")
    spec = EnvironmentSpec(
        uploads=(Upload(source=tmp_path / "file", target="/sealed/file", read_only=True),
                 Upload(source=tmp_path / "file", target="/open/file")),
        setup="echo x >/sealed/file; rm -f /sealed/file; echo x >/open/file; true",
    )
    box = await engine.create(spec, SandboxPolicy())
    snapshot = await box.snapshot()
    (forked,) = await engine.fork(snapshot)
    for one in (box, forked):
        assert (await one.exec("echo y >>/sealed/file || mv /sealed/file x || mv /sealed x")).exit_code != 0
        assert await one.read("/sealed/file") == b"start"
        assert await one.read("/open/file") == b"x\n"
    await snapshot.release()


async def test_a_command_cut_off_takes_no_upload_along(box: NativeSandbox, tmp_path: Path) -> None:
    """The end of a command's tree is not the end of the uploads that began after it."""
    go = threading.Event()

    class Slow(io.RawIOBase):
        parts = [tar_of("file", b"x" * 1000)]

        def read(self, size: int = -1, /) -> bytes:
            go.wait(20)
            return self.parts.pop() if self.parts else b""

    process = await box.start("sleep 60")
    sending = asyncio.create_task(box.upload_tar(Slow(), "t"))  # type: ignore[arg-type]  # read() is all that is used
    await asyncio.sleep(0.2)
    await process.kill()
    assert (await box.exec("sleep 5", timeout_s=0.1)).timed_out
    go.set()
    await sending
    assert await box.read("t/file") == b"x" * 1000


def tar_of(name: str, data: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


async def test_the_reader_of_a_tar_stream_may_be_the_first_to_go(box: NativeSandbox) -> None:
    """A sink that fails ends the stream with its own error; the box goes on."""

    class Full(io.BytesIO):
        def write(self, data: object, /) -> int:
            raise OSError(errno.ENOSPC, "full")

    await box.exec("head -c 9000000 /dev/zero >big")
    with pytest.raises(OSError, match="full"):
        await box.download_tar("big", Full())
    assert (await box.exec("echo well")).stdout == b"well\n"


async def test_attributes_of_overlayfs_cannot_be_forged(box: NativeSandbox) -> None:
    """Marks of overlayfs that a process sets are ordinary attributes to us: what is captured does not change.

    The control: the same mark set from outside, on the layer itself, does change it.
    """
    python = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), None)
    if python is None:
        pytest.skip("the host's /usr has no python3: apt install python3")
    forge = (
        "import os\nos.makedirs('/etc/new')\nopen('/etc/new/f','w').close()\n"
        "for path in ('/etc', '/etc/new', '/etc/new/f'):\n"
        " for name in ('opaque', 'whiteout', 'redirect', 'metacopy', 'origin', 'overlay.opaque', 'upper'):\n"
        "  for value in (b'y', b'x', b'/root'):\n"
        "   try: os.setxattr(path, 'user.overlay.' + name, value); print(name)\n"
        "   except OSError: pass\n")
    await box.exec([python, "-c", forge])
    await box.kill_all()
    kinds = {change.path: change.kind.value for change in (await box.changes(MemoryBlobs(), roots=("/etc",))).changes}
    assert kinds == {"/etc/new": "directory", "/etc/new/f": "file"}
    os.setxattr(box.world.folder / "u" / "etc", "user.overlay.opaque", b"y")
    kinds = {change.path: change.kind.value for change in (await box.changes(MemoryBlobs(), roots=("/etc",))).changes}
    assert kinds["/etc"] == "opaque"
