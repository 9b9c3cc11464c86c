"""Files: written, read, listed and uploaded, and no way out through any of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from woodshed.interfaces import SandboxEngine
from woodshed.model import EnvironmentSpec, Upload
from woodshed.sandbox.conformance.kit import Check, by_path, captured, opened, raises, shell


async def files_are_written_read_and_listed(engine: SandboxEngine) -> None:
    """Content and mode arrive, parents are made, kinds are told apart, and errors are the usual OSErrors."""
    async with opened(engine) as sandbox:
        await sandbox.write("/workspace/deep/er/script", b"#!/bin/sh\necho ran\n", mode=0o755)
        assert await shell(sandbox, "deep/er/script") == "ran\n"
        await sandbox.write("deep/er/script", b"short")
        assert await sandbox.read("/workspace/deep/er/script") == b"short"
        await shell(sandbox, "ln -s nowhere deep/link && mkfifo deep/pipe")
        kinds = {entry.name: entry.kind for entry in await sandbox.list("deep")}
        assert kinds == {"er": "directory", "link": "symlink", "pipe": "other"}
        large = bytes(range(256)) * 20_000
        await sandbox.write("large", large)
        assert await sandbox.read("large") == large
        await raises(FileNotFoundError, sandbox.read("missing"))
        await raises(IsADirectoryError, sandbox.read("deep"))
        await raises(NotADirectoryError, sandbox.list("large"))
        await raises(FileNotFoundError, sandbox.list("missing"))
        await raises(OSError, sandbox.read("large", max_bytes=1000))


async def special_files_neither_hang_nor_pass(engine: SandboxEngine) -> None:
    """Reading or writing a FIFO, a device or a socket is refused at once; nothing blocks."""
    async with opened(engine) as sandbox:
        await shell(sandbox, "mkfifo pipe && ln -s pipe to-pipe && ln -s /dev/zero to-zero && ln -s /dev/tty to-tty")
        for path in ("pipe", "to-pipe", "to-zero", "to-tty", "/dev/null", "/dev/zero"):
            await raises(OSError, sandbox.read(path))
            await raises(OSError, sandbox.write(path, b"data"))


async def links_lead_to_the_sandboxs_own_files(engine: SandboxEngine) -> None:
    """A link in the way of read, write, list or upload is resolved inside; the host's files stay out of reach."""
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder, "secret")
        secret.write_bytes(b"of the host")
        async with opened(engine) as sandbox:
            await shell(sandbox, f"ln -s {secret} file; ln -s {folder} dir; ln -s /../../..{folder} up; ln -s /etc etc")
            for path in ("file", "dir/secret", "up/secret", str(secret)):
                await raises(OSError, sandbox.read(path))
            assert await sandbox.read("etc/hostname") == await sandbox.read("/etc/hostname")
            await sandbox.write("etc/passwd", b"inside")
            await sandbox.upload(secret, "etc/uploaded")
            assert await sandbox.read("/etc/uploaded") == b"of the host"
        assert secret.read_bytes() == b"of the host"
        assert not Path("/etc/uploaded").exists()
        assert Path("/etc/passwd").read_bytes() != b"inside"


async def uploads_arrive_whole(engine: SandboxEngine) -> None:
    """Files, modes, empty folders and links arrive; links are copied, never followed on the host."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "tree")
        (source / "sub" / "empty").mkdir(parents=True)
        (source / "run").write_bytes(b"#!/bin/sh\necho up\n")
        (source / "run").chmod(0o755)
        (source / "sub" / "big").write_bytes(b"0123456789" * 300_000)
        (source / "shadow").symlink_to("/etc/shadow")
        async with opened(engine) as sandbox:
            await sandbox.upload(source, "/workspace/in/here")
            assert await shell(sandbox, "cd in/here && ./run && readlink shadow && find . | sort") == (
                "up\n/etc/shadow\n.\n./run\n./shadow\n./sub\n./sub/big\n./sub/empty\n")
            assert await sandbox.read("in/here/sub/big") == (source / "sub" / "big").read_bytes()
            await sandbox.upload(source / "run", "one")
            assert await shell(sandbox, "./one") == "up\n"


async def uploads_of_the_spec_stand_there_at_the_start(engine: SandboxEngine) -> None:
    """Declared uploads are in place, writable by the sandbox, no change of its own, and the source stays as it was."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "start")
        source.mkdir()
        (source / "file").write_bytes(b"start")
        spec = EnvironmentSpec(uploads=(Upload(source=source, target="/workspace"),))
        async with opened(engine, spec) as sandbox:
            assert (await captured(sandbox))[0].changes == ()
            assert await sandbox.read("file") == b"start"
            await shell(sandbox, "echo changed >file && touch new")
            changes = by_path((await captured(sandbox))[0])
            assert set(changes) == {"/workspace/file", "/workspace/new"}
        assert [(path.name, path.read_bytes()) for path in source.iterdir()] == [("file", b"start")]


async def read_only_uploads_stay_as_they_are(engine: SandboxEngine) -> None:
    """Nothing in the sandbox changes, adds to, moves or removes an upload that is read-only; others it may."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("sealed", "open"):
            Path(folder, name).mkdir()
            Path(folder, name, "file").write_bytes(b"start")
        spec = EnvironmentSpec(uploads=(
            Upload(source=Path(folder, "sealed"), target="/sealed", read_only=True),
            Upload(source=Path(folder, "open"), target="/open"),
        ))
        tries = ("echo x >$d/file", "echo x >>$d/file", "touch $d/new", "rm $d/file", "mv $d/file $d/other",
                 "mv $d $d-2", "chmod 777 $d/file", "rm -r $d", "ln -sfn /open $d", "rmdir $d/made || mkdir $d/made",
                 "ln $d/file /open-name && echo x >/open-name", "truncate -s 0 $d/file")
        async with opened(engine, spec) as sandbox:
            for attempt in tries:
                await sandbox.exec(f"d=/sealed; {attempt}")
            await raises(OSError, sandbox.write("/sealed/file", b"x"))
            assert await sandbox.read("/sealed/file") == b"start"
            assert [entry.name for entry in await sandbox.list("/sealed")] == ["file"]
            assert (await captured(sandbox, "/sealed"))[0].changes == ()
        for attempt in tries[:6]:  # the control: what is not sealed gives way
            async with opened(engine, spec) as sandbox:
                await shell(sandbox, f"d=/open; {attempt}")


CHECKS: tuple[Check, ...] = (
    files_are_written_read_and_listed, special_files_neither_hang_nor_pass, links_lead_to_the_sandboxs_own_files,
    uploads_arrive_whole, uploads_of_the_spec_stand_there_at_the_start, read_only_uploads_stay_as_they_are,
)
