"""Transfers: trees in and out whole or not at all, tar streams both ways, hostile ones refused, and events of files."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from woodshed.errors import UsageError
from woodshed.interfaces import FileEvent, FileInfo, SandboxEngine
from woodshed.sandbox.conformance.kit import Check, needs, opened, raises, shell

_WAIT_S = 20.0
_HOSTILE = ("/absolute", "../climbs", "a/../../climbs", "a/../b")
_TREE = ("mkdir -p t/sub/empty t/closed; echo '#!/bin/sh' >t/run; chmod 755 t/run; echo x >t/sub/x; ln -s /etc/passwd"
         " t/link; ln -s nowhere t/sub/dangling; chmod 500 t/closed; printf 'odd' >\"t/new\nline\"")


def _seen(root: Path) -> dict[str, tuple[int, bytes | str | None]]:
    """Everything below ``root``, nothing followed: modes, contents, targets."""
    found: dict[str, tuple[int, bytes | str | None]] = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        what: bytes | str | None = None
        if stat.S_ISLNK(info.st_mode):
            found[str(path.relative_to(root))] = (0, str(path.readlink()))
            continue
        if stat.S_ISREG(info.st_mode):
            what = path.read_bytes()
        found[str(path.relative_to(root))] = (stat.S_IMODE(info.st_mode), what)
    return found


async def trees_come_back_as_they_are(engine: SandboxEngine) -> None:
    """A downloaded tree has the names, modes, contents and links it has inside; uploaded again it is the same."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "first"), Path(folder, "second")
        async with opened(engine) as sandbox:
            await shell(sandbox, _TREE)
            await sandbox.download("t", first)
            assert _seen(first) == {
                "closed": (0o500, None), "link": (0, "/etc/passwd"), "new\nline": (0o644, b"odd"),
                "run": (0o755, b"#!/bin/sh\n"), "sub": (0o755, None), "sub/dangling": (0, "nowhere"),
                "sub/empty": (0o755, None), "sub/x": (0o644, b"x\n"),
            }
            await sandbox.upload(first, "again")
            await sandbox.download("/workspace/again", second)
            assert _seen(second) == _seen(first)
            await sandbox.download("t/run", Path(folder, "file"))
            assert Path(folder, "file").read_bytes() == b"#!/bin/sh\n"
            await sandbox.download("t/link", Path(folder, "link"))
            assert str(Path(folder, "link").readlink()) == "/etc/passwd"
        (first / "closed").chmod(0o700)
        (second / "closed").chmod(0o700)


async def downloads_arrive_whole_or_not_at_all(engine: SandboxEngine) -> None:
    """What is missing, too large by its apparent size, or would replace something leaves nothing on the host."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder, "there")
        there.write_bytes(b"mine")
        async with opened(engine) as sandbox:
            await shell(sandbox, "mkdir t; echo x >t/x; truncate -s 1500M t/sparse; mkfifo p")
            await raises(FileNotFoundError, sandbox.download("missing", Path(folder, "a")))
            await raises(FileExistsError, sandbox.download("t", there))
            await raises(OSError, sandbox.download("t", Path(folder, "b")))
            await raises(OSError, sandbox.download("t/x", Path(folder, "c"), max_bytes=1))
            await raises(OSError, sandbox.download("p", Path(folder, "d")))
            sink = io.BytesIO()
            await raises(OSError, sandbox.download_tar("t", sink, max_bytes=1 << 20))
            assert len(sink.getvalue()) <= 1 << 20
        assert [path.name for path in Path(folder).iterdir()] == ["there"]
        assert there.read_bytes() == b"mine"


async def nothing_privileged_or_special_comes_out(engine: SandboxEngine) -> None:
    """Set-id and sticky bits, FIFOs and odd owners stay inside; several names of a file become files of their own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        async with opened(engine) as sandbox:
            await shell(sandbox, "mkdir t; echo x >t/s; chmod 6755 t/s; chmod 3777 t; mkfifo t/p; ln t/s t/twin;"
                                 " (chown 1000:1000 t/s || true) 2>/dev/null; chmod 6755 t/s")
            assert (await sandbox.stat("t/s")).mode == 0o6755
            await sandbox.download("t", out)
        assert sorted(path.name for path in out.iterdir()) == ["s", "twin"]
        for path in (out, out / "s", out / "twin"):
            info = path.lstat()
            assert (info.st_uid, info.st_mode & 0o7000) == (os.geteuid(), 0)
        assert (out / "s").lstat().st_nlink == 1


async def tar_streams_go_both_ways(engine: SandboxEngine) -> None:
    """An archive made here is unpacked inside, and one of the inside is read here, with the same files."""
    long = "d" * 90 + "/" + "ü" * 60
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in (("a", b"one"), (long, b"two" * 1000)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o640
            archive.addfile(member, io.BytesIO(content))
        for name, kind, target in (("link", tarfile.SYMTYPE, "/nowhere"), ("hard", tarfile.LNKTYPE, "a")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    packed.seek(0)
    async with opened(engine) as sandbox:
        await sandbox.upload_tar(packed, "in/here")
        assert await shell(sandbox, "cd in/here && cat a hard && readlink link && stat -c %a a") == (
            "oneone/nowhere\n640\n")
        assert await sandbox.read(f"in/here/{long}") == b"two" * 1000
        out = io.BytesIO()
        await sandbox.download_tar("in/here", out)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        held = archive.extractfile(f"here/{long}")
        assert held is not None
        assert held.read() == b"two" * 1000
        assert archive.getmember("here/link").linkname == "/nowhere"


async def hostile_archives_are_refused(engine: SandboxEngine) -> None:
    """Absolute and climbing names, devices, ways through a link, and broken archives are refused by name."""
    async with opened(engine) as sandbox:
        for name in _HOSTILE:
            error = await raises(UsageError, sandbox.upload_tar(_archive(tarfile.TarInfo(name)), "t"))
            assert name in str(error)
        for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo("special")
            member.type = kind
            error = await raises(UsageError, sandbox.upload_tar(_archive(member), "t"))
            assert "special" in str(error)
        link, through = tarfile.TarInfo("out"), tarfile.TarInfo("out/file")
        link.type, link.linkname = tarfile.SYMTYPE, "/workspace"
        error = await raises(UsageError, sandbox.upload_tar(_archive(link, through), "t"))
        assert "out/file" in str(error)
        whole = _archive(tarfile.TarInfo("fine")).getvalue()
        for broken in (b"", whole[:300], whole[:512], b"\x1f\x8b" + bytes(2000), b"x" * 512 + whole):
            await raises(UsageError, sandbox.upload_tar(io.BytesIO(broken), "t"))
        assert await shell(sandbox, "find / -xdev -name climbs -o -xdev -name absolute -o -path /workspace/file") == ""


def _archive(*members: tarfile.TarInfo) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for member in members:
            archive.addfile(member)
    packed.seek(0)
    return packed


async def a_file_is_replaced_in_one_step(engine: SandboxEngine) -> None:
    """A reader inside sees the old content or the new, never a part; a link at the path is followed and stays."""
    old, new = b"o" * 300_000, b"n" * 200_000
    async with opened(engine) as sandbox:
        await sandbox.write("file", old)
        await shell(sandbox, "ln -s file link")
        reading = asyncio.create_task(sandbox.exec(
            "while ! test -e stop; do tr -d '\\n' <file | cksum; done | sort -u", timeout_s=_WAIT_S * 3))
        for turn in range(30):
            await sandbox.write("link" if turn % 2 else "file", new if turn % 2 else old, mode=0o600)
        await sandbox.write("stop", b"")
        result = await reading
        assert len(result.stdout.splitlines()) <= 2, result
        assert await shell(sandbox, "readlink link && stat -c %a file && ls -A") == "file\n600\nfile\nlink\nstop\n"


async def what_stands_at_a_path_is_told(engine: SandboxEngine) -> None:
    """stat tells kind, size, mode, owner and time of what is at a path, and follows no link that stands there."""
    async with opened(engine) as sandbox:
        await shell(sandbox, "echo x >f; chmod 604 f; ln -s f l; mkfifo p; touch -d @1000 f")
        told = await sandbox.stat("f")
        assert told == FileInfo("f", "file", 2, 0o604, 0, 1000.0)
        assert [(await sandbox.stat(path)).kind for path in ("l", "p", "/workspace", "/")] == [
            "symlink", "other", "directory", "directory"]
        await raises(FileNotFoundError, sandbox.stat("missing"))
        listed = {entry.name: entry for entry in await sandbox.list(".")}
        assert listed["f"] == told


@needs("watch")
async def a_watched_directory_tells_its_events(engine: SandboxEngine) -> None:
    """What is made, changed and deleted is told, below new directories as well, until the iterator is closed."""
    async with opened(engine) as sandbox:
        await shell(sandbox, "mkdir -p w/old; echo x >w/old/file")
        events = sandbox.watch("w")
        waiting = asyncio.create_task(_until(events, "/workspace/w/old/ready"))
        while not waiting.done():  # what happens before it watches is not told
            await shell(sandbox, "touch w/old/ready; rm w/old/ready; touch w/old/ready")
            await asyncio.sleep(0.05)
        await waiting
        await shell(sandbox, "mkdir -p w/new/deep; echo x >w/new/deep/made; echo y >>w/old/file; rm w/old/ready")
        seen = await _until(events, "/workspace/w/old/ready", "deleted")
        assert seen["/workspace/w/new"] == seen["/workspace/w/new/deep/made"] == "created"
        assert seen["/workspace/w/old/file"] == "changed"
        await events.aclose()  # type: ignore[attr-defined]  # every iterator of ours has it; the protocol names less
        await raises(FileNotFoundError, anext(sandbox.watch("missing")))


async def _until(events: AsyncIterator[FileEvent], path: str, kind: str | None = None) -> dict[str, str]:
    seen: dict[str, str] = {}
    async with asyncio.timeout(_WAIT_S):
        async for event in events:
            seen[event.path] = event.kind
            if event.path == path and kind in (None, event.kind):
                return seen
    raise AssertionError("the events ended")


CHECKS: tuple[Check, ...] = (
    trees_come_back_as_they_are, downloads_arrive_whole_or_not_at_all, nothing_privileged_or_special_comes_out,
    tar_streams_go_both_ways, hostile_archives_are_refused, a_file_is_replaced_in_one_step,
    what_stands_at_a_path_is_told, a_watched_directory_tells_its_events,
)
