"""The parts of the native engine by themselves: kept output, removed trees, id ranges, messages, findings."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.errors import EnvironmentFault
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.native import capture, cgroups, ids, trees
from woodshed.sandbox.native.channel import Channel
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.inside import commands, wire
from woodshed.sandbox.native.output import Drain, Kept
from woodshed.sandbox.native.places import Place
from woodshed.sandbox.native.probe import Finding, probe


@given(pieces=st.lists(st.binary(max_size=50), max_size=40), limit=st.integers(2, 80))
def test_kept_output_is_the_whole_or_its_two_ends(pieces: list[bytes], limit: int) -> None:
    """At most ``limit`` bytes are kept: all of a small stream, else its beginning and its end, and that is said."""
    kept, whole = Kept(limit), b"".join(pieces)
    for piece in pieces:
        kept.add(piece)
    assert kept.truncated == (len(whole) > limit)
    if kept.truncated:
        half = limit // 2
        assert kept.bytes() == whole[: limit - half] + whole[len(whole) - half:]
    else:
        assert kept.bytes() == whole


@given(size=st.integers(150_000, 600_000))
@settings(max_examples=10)
def test_kept_output_holds_little_of_a_flood(size: int) -> None:
    """What lies in the middle is let go on the way, not at the end."""
    kept = Kept(1000)
    for _ in range(20):
        kept.add(b"x" * size)
    assert len(kept._tail) < 3 * size
    assert len(kept.bytes()) == 1000


NAMES = st.text("ab\n\udc80", min_size=1, max_size=3)


@given(paths=st.lists(st.lists(NAMES, min_size=1, max_size=6), max_size=12), closed=st.sets(st.integers(0, 11)),
       budget=st.one_of(st.none(), st.integers(1, 5)))
@settings(deadline=None, max_examples=60)
def test_any_tree_is_removed(
    tmp_path_factory: pytest.TempPathFactory, paths: list[list[str]], closed: set[int], budget: int | None
) -> None:
    """Odd names, closed directories and links do not keep a tree; what a link leads to stays; a budget stops early."""
    base = tmp_path_factory.mktemp("trees")
    outside, top = base / "outside", base / "top"
    outside.mkdir()
    (outside / "kept").touch()
    top.mkdir()
    made = []
    for path in paths:
        directory = top.joinpath(*path)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "link-to-outside").unlink(missing_ok=True)
        (directory / "link-to-outside").symlink_to(outside)
        made.append(directory)
    for number in closed & set(range(len(made))):
        if made[number].stat().st_mode & 0o700:
            made[number].chmod(0)
            break
    if budget is not None and not trees.remove(top, budget):
        assert top.exists()
    assert trees.remove(top)
    assert not top.exists()
    assert (outside / "kept").exists()


def test_a_tree_deeper_than_paths_go_is_removed(tmp_path: Path) -> None:
    """Depth costs neither stack nor descriptors: five thousand levels, twenty times the longest path."""
    top = tmp_path / "top"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("a-directory-with-a-name", dir_fd=fd)
        deeper = os.open("a-directory-with-a-name", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    assert trees.remove(top)
    assert not top.exists()


def test_ranges_of_two_engines_never_meet(tmp_path: Path) -> None:
    """Ids handed out are 65,536 apart, unique over engines, free again after use, and free after their holder's end."""
    one, two = ids.Ranges(tmp_path / "ids"), ids.Ranges(tmp_path / "ids")
    taken = [ranges.take() for _ in range(70) for ranges in (one, two)]
    assert len(set(taken)) == 140
    assert all((first - 0x70000000) % ids.COUNT == 0 and first + ids.COUNT <= 0x7FFE0000 for first in taken)
    one.give_back(taken[0])
    assert one.take() == taken[0]
    one.close()
    three = ids.Ranges(tmp_path / "ids")
    assert three.take() in taken[::2]
    for ranges in (two, three):
        ranges.close()
    one.close()


def test_ranges_run_out_with_a_fault(tmp_path: Path) -> None:
    """With every block held, the next engine gets an EnvironmentFault, not someone else's ids."""
    ranges = ids.Ranges(tmp_path / "ids")
    for _ in range(63 * 64):
        ranges.take()
    with pytest.raises(EnvironmentFault, match="user ids"):
        ranges.take()
    ranges.close()


@pytest.mark.parametrize("size", [10, 59_000, 70_000, 3_000_000])
def test_messages_of_any_size_pass_with_their_descriptors(size: int) -> None:
    """A message arrives as it was sent, surrogates included, with its descriptors close-on-exec and in order."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    with left, right:
        wire.send(left, {"text": "\udcff" + "x" * size}, [reader, writer])
        message, fds = wire.receive(right)
        assert message == {"text": "\udcff" + "x" * size}
        assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(fd).st_ino for fd in (reader, writer)]
        assert not any(os.get_inheritable(fd) for fd in fds)
        for fd in (*fds, reader, writer):
            os.close(fd)
        left.close()
        assert wire.receive(right) == (None, [])


def test_what_is_no_message_is_refused() -> None:
    """Broken JSON, a list, a large message without its file, or one beyond all bounds raise ValueError."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        for packet in (b"{", b"[1]", b"M", b"\xff"):
            left.send(packet)
            with pytest.raises(ValueError):  # noqa: PT011 (of four kinds)
                wire.receive(right)
        huge = os.memfd_create("huge")
        os.truncate(huge, 1 << 40)
        socket.send_fds(left, [b"M"], [huge])
        os.close(huge)
        with pytest.raises(ValueError, match="at most"):
            wire.receive(right)


async def test_a_channel_queues_for_a_peer_that_does_not_read() -> None:
    """Sends to a full socket wait in order and arrive; the end of the peer is told once; sending on is no error."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ends: list[int] = []
    channel = Channel(ours, lambda message, fds: None, lambda: ends.append(1))
    for number in range(400):
        channel.send({"number": number, "fill": "x" * 5000})
    seen: list[int] = []
    while len(seen) < 400:
        message, _ = await asyncio.to_thread(wire.receive, theirs)
        assert message is not None
        seen.append(message["number"])
    assert seen == list(range(400))
    theirs.close()
    while not ends:  # noqa: ASYNC110 (the loop itself delivers it)
        await asyncio.sleep(0)
    channel.send({})
    channel.close()
    assert ends == [1]


async def test_a_channel_ends_where_a_message_cannot_be_sent() -> None:
    """What the kernel refuses to send is not waited for in vain: the channel ends, once, and says so."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ends: list[int] = []
    channel = Channel(ours, lambda message, fds: None, lambda: ends.append(1))
    channel.send({}, [theirs.fileno()] * 300)  # over SCM_MAX_FD
    channel.send({})
    assert ends == [1]
    assert theirs.recv(10) == b"", "the peer sees the end"
    theirs.close()


async def test_a_drain_empties_pipes_that_others_hold() -> None:
    """A writer of a drained pipe neither blocks for good nor gets SIGPIPE; the drain lets go at the end."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    os.set_blocking(writer, True)
    drain = Drain(asyncio.get_running_loop())
    drain.add(reader)
    await asyncio.to_thread(os.write, writer, b"x" * 300_000)
    os.close(writer)
    await asyncio.sleep(4 * Drain.EVERY_S)
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(reader)
    drain.close()


@pytest.mark.parametrize(
    ("path", "parts"), [("/", ()), ("/a/../b/./c//", ("b", "c")), ("a", ("a",)), ("/../x", ("x",))]
)
def test_roots_are_normalised(path: str, parts: tuple[str, ...]) -> None:
    """A root of a capture is split without looking at any file."""
    assert capture.split(path) == parts


def test_processes_with_odd_names_are_read() -> None:
    """A process may call itself anything; its state, parent and session are still found."""
    script = "import ctypes, time; ctypes.CDLL(None).prctl(15, b') Z 1 ('); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            state, parent, session = commands._stat(process.pid)
        finally:
            process.kill()
    assert state in "SR"
    assert (parent, session) == (os.getpid(), process.pid)


async def test_the_probe_finds_what_works_and_leaves_nothing(tmp_path: Path) -> None:
    """Where sandboxes work it says so from a real one; every finding has a text, and a remedy where it fails."""
    findings = {finding.name: finding for finding in await probe(tmp_path / "home")}
    assert findings["sandbox"].ok, findings["sandbox"]
    assert findings["limits"].ok == ("memory" in cgroups.control().parents)
    assert all(finding.detail for finding in findings.values())
    assert all(finding.ok or finding.remedy for finding in findings.values())
    assert list((tmp_path / "home").iterdir()) == []
    assert Finding("a", True, "b").to_json() == {"name": "a", "ok": True, "detail": "b", "remedy": "", "required": True}


async def test_the_probe_says_how_to_mend_a_home_that_cannot_be(tmp_path: Path) -> None:
    """A home that is a file is a failed finding with a remedy, not an exception."""
    (tmp_path / "file").touch()
    findings = {finding.name: finding for finding in await probe(tmp_path / "file")}
    assert not findings["storage"].ok
    assert "WOODSHED_HOME" in findings["storage"].remedy
    assert not findings["sandbox"].ok


async def test_a_closed_engine_makes_nothing(tmp_path: Path) -> None:
    """close() before any use is fine, twice too, and afterwards create is an EnvironmentFault."""
    engine = NativeEngine(tmp_path)
    await engine.close()
    await engine.close()
    with pytest.raises(EnvironmentFault, match="closed"):
        await engine.create(EnvironmentSpec(), SandboxPolicy())


def test_boxes_are_spread_where_the_file_system_can(tmp_path: Path) -> None:
    """On ext4 an instance's folder asks for a block group of its own for each box; elsewhere nothing is asked."""
    place = Place(tmp_path)
    try:
        kind = max(
            ((mount.split()[1], mount.split()[2]) for mount in Path("/proc/mounts").read_text().splitlines()
             if str(tmp_path).startswith(mount.split()[1])),
            key=lambda mount: len(mount[0]),
        )[1]  # fmt: skip
        if kind != "ext4":
            pytest.skip("ext4 is what this is about: set TMPDIR to a folder on it")
        flags = bytearray(8)
        fd = os.open(place.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, 0x80086601, flags)  # FS_IOC_GETFLAGS
        finally:
            os.close(fd)
        assert flags[2] & 0x02, "FS_TOPDIR_FL is 0x20000"
    finally:
        place.close()
