"""Files between host and box: whatever lies inside, reading, writing, listing and uploading stay inside and return."""
# ruff: noqa: PT011
# (Which OSError the kernel gives differs with the way taken; that one is given is the point.)

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from woodshed.errors import UsageError
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine


@pytest.fixture
async def box(shed_home: Path, images: Images) -> AsyncIterator[NativeSandbox]:
    engine = NativeEngine(shed_home, images=images)
    yield await engine.create(EnvironmentSpec(), SandboxPolicy())
    await engine.close()


async def test_links_into_proc_do_not_reach_the_first_process(box: NativeSandbox) -> None:
    """For a read or write "self" is PID 1: /proc is refused to both, by name and by link, and open to commands."""
    targets = [
        "/proc/self/environ", "/proc/self/mem", "/proc/self/maps", "/proc/self/fd/3", "/proc/self/exe",
        "/proc/self/root/etc/passwd", "/proc/self/cwd/x", "/proc/1/cmdline", "/proc/thread-self/mem", "/dev/fd/3",
        "/proc/self/oom_score_adj", "/proc/cpuinfo",
    ]  # fmt: skip
    for number, target in enumerate(targets):
        await box.exec(["ln", "-s", target, f"link{number}"])
        for path in (target, f"link{number}"):
            with pytest.raises(OSError):
                await box.read(path)
            with pytest.raises(OSError):
                await box.write(path, b"x")
    assert (await box.exec("cat /proc/cpuinfo")).exit_code == 0
    assert (await box.exec("echo well")).stdout == b"well\n"


async def test_loops_and_missing_parents_are_errors(box: NativeSandbox) -> None:
    """A loop of links, a file as a parent and an overlong name raise OSError at once."""
    await box.exec("ln -s b a; ln -s a b; touch file")
    for path in ("a", "a/x", "file/x", "x" * 300, "/" + "x/" * 3000):
        with pytest.raises(OSError):
            await box.read(path)
        with pytest.raises(OSError):
            await box.write(path, b"x")
    for odd in ("a\0b", "half \ud800 pair"):
        with pytest.raises(OSError):
            await box.read(odd)
        with pytest.raises(OSError):
            await box.write(odd, b"x")
        with pytest.raises(OSError):
            await box.list(odd)
        assert (await box.exec(["echo", odd])).exit_code == 126
        assert (await box.exec(odd)).exit_code == 126
        assert (await box.exec("true", cwd=odd)).exit_code == 126
        assert (await box.exec("true", env={odd: odd})).exit_code == 126
    assert (await box.exec("echo well")).stdout == b"well\n"


async def test_a_link_swapped_while_reading_stays_inside(box: NativeSandbox, tmp_path: Path) -> None:
    """While a process swaps a file for a link to a host path, reads give the file or an error, never the host's."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"of the host")
    await box.exec("echo own >file")
    swap = f"while true; do ln -sfn {secret} x; mv -T x file; echo own >y; mv y file; done"
    process = await box.start(swap)
    seen = set()
    for _ in range(200):
        try:
            seen.add(await box.read("file"))
        except OSError:
            seen.add(b"error")
    await process.kill()
    assert seen <= {b"own\n", b"", b"error"}


async def test_uploads_replace_links_and_stay_inside(box: NativeSandbox, tmp_path: Path) -> None:
    """Links planted where an upload goes are replaced below its target, and lead nowhere outside."""
    source, outside = tmp_path / "source", tmp_path / "outside"
    (source / "sub").mkdir(parents=True)
    outside.mkdir()
    (source / "sub" / "file").write_bytes(b"new")
    (source / "top").write_bytes(b"top")
    await box.exec(f"mkdir t; ln -s {outside} t/sub; ln -s /etc/passwd t/top; ln -s {outside} dangling")
    await box.upload(source, "t")
    assert await box.read("t/sub/file") == b"new"
    assert (await box.exec("test -L t/sub || test -L t/top")).exit_code == 1
    assert b"root:" in await box.read("/etc/passwd")
    with pytest.raises(OSError):
        await box.upload(source / "top", "dangling/deep/x/" + "y" * 300)
    await box.upload(source / "top", "dangling")
    assert list(outside.iterdir()) == []


async def test_an_upload_onto_a_fifo_or_directory_does_not_hang(box: NativeSandbox, tmp_path: Path) -> None:
    """A FIFO in the way is replaced; a directory where a file should go is an error."""
    (tmp_path / "file").write_bytes(b"x")
    await box.exec("mkfifo pipe; mkdir dir")
    await box.upload(tmp_path / "file", "pipe")
    assert await box.read("pipe") == b"x"
    with pytest.raises(IsADirectoryError):
        await box.upload(tmp_path / "file", "dir")


async def test_only_plain_sources_are_uploaded(box: NativeSandbox, tmp_path: Path) -> None:
    """A device, FIFO or socket of the host, or a missing file, is a UsageError that names it."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "sock"))
        for path in (tmp_path / "pipe", tmp_path / "sock", Path("/dev/zero"), tmp_path / "missing", tmp_path):
            with pytest.raises(UsageError, match=str(path.name)):
                await box.upload(path, "x")


async def test_a_write_changes_mode_and_length(box: NativeSandbox) -> None:
    """write() replaces the whole content and sets the mode, also of a file that was larger or closed."""
    await box.exec("head -c 10000 /dev/zero >file; chmod 000 file")
    await box.write("file", b"short", mode=0o640)
    assert (await box.exec("stat -c '%s %a' file")).stdout == b"5 640\n"
    await box.write("file", b"", mode=0o4777)
    assert (await box.exec("stat -c '%s %a' file")).stdout == b"0 777\n"


async def test_read_only_places_refuse_writes(box: NativeSandbox) -> None:
    """Nothing is written into the host's /usr, /dev or /sys through the box."""
    for path in ("/usr/x", "/usr/bin/env", "/dev/x", "/proc/x"):
        with pytest.raises(OSError):
            await box.write(path, b"x")
