"""What every sandbox engine must do: plain async checks over any SandboxEngine, each making its own sandboxes.

A check returns when what its first docstring line says holds, and raises AssertionError otherwise. The image needs a
POSIX shell with the usual small programs. Run all with :func:`run`, or parametrise a test over :data:`CHECKS`.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from woodshed.errors import EnvironmentFault, SandboxDied, StoreFault
from woodshed.interfaces import Sandbox, SandboxEngine
from woodshed.model import Change, ChangeKind, ChangeSet, EnvironmentSpec, Limits, SandboxPolicy, Upload

Check = Callable[[SandboxEngine], Awaitable[None]]
SPEC = EnvironmentSpec(env={"GREETING": "hello"})


class MemoryBlobs:
    """A BlobSink in memory."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def put(self, content: bytes | BinaryIO) -> str:
        """Keep the content; its sha256."""
        data = content if isinstance(content, bytes) else content.read()
        digest = hashlib.sha256(data).hexdigest()
        self.content[digest] = data
        return digest

    def open(self, sha256: str) -> BinaryIO:
        """The content. Raises StoreFault when absent."""
        if sha256 not in self.content:
            raise StoreFault(f"no blob {sha256}")
        return io.BytesIO(self.content[sha256])


@asynccontextmanager
async def opened(
    engine: SandboxEngine, spec: EnvironmentSpec = SPEC, limits: Limits | None = None
) -> AsyncIterator[Sandbox]:
    """A fresh sandbox, closed afterwards."""
    sandbox = await engine.create(spec, SandboxPolicy(limits=limits or spec.limits))
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def shell(sandbox: Sandbox, command: str) -> str:
    """Standard output of a command that must succeed."""
    result = await sandbox.exec(command)
    assert result.exit_code == 0, result
    return result.stdout.decode()


async def captured(sandbox: Sandbox, *roots: str) -> tuple[ChangeSet, MemoryBlobs]:
    """What a sandbox changed, everything in it stopped first."""
    blobs = MemoryBlobs()
    await sandbox.kill_all()
    return await sandbox.changes(blobs, roots=roots or ("/",)), blobs


def by_path(changes: ChangeSet) -> dict[str, Change]:
    """Changes by path; each path once."""
    found = {change.path: change for change in changes.changes}
    assert len(found) == len(changes.changes), "a path appears twice"
    return found


async def exec_reports_how_a_command_ended(engine: SandboxEngine) -> None:
    """Exit code, both streams and time are a command's own; a signal becomes 128+n."""
    async with opened(engine) as sandbox:
        result = await sandbox.exec("echo out; echo err >&2; exit 7")
        assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
        assert (result.truncated, result.timed_out, result.oom_killed) == (False, False, False)
        assert (await sandbox.exec("kill -9 $$")).exit_code == 137


async def exec_takes_an_argv_as_it_is(engine: SandboxEngine) -> None:
    """No shell interprets a sequence."""
    async with opened(engine) as sandbox:
        result = await sandbox.exec(["printf", "%s|", "a b", "$HOME", "*", ""])
        assert result.stdout == b"a b|$HOME|*||"


async def exec_says_why_a_command_cannot_run(engine: SandboxEngine) -> None:
    """Missing is 127, not executable or a missing directory is 126 or 127, each with a reason on stderr."""
    async with opened(engine) as sandbox:
        missing = await sandbox.exec(["no-such-program"])
        assert missing.exit_code == 127, missing
        assert b"no-such-program" in missing.stderr
        await sandbox.write("/workspace/plain", b"text", mode=0o644)
        refused = await sandbox.exec(["/workspace/plain"])
        assert refused.exit_code == 126, refused
        assert refused.stderr
        nowhere = await sandbox.exec("true", cwd="/no/such/place")
        assert nowhere.exit_code in (126, 127), nowhere
        assert b"/no/such/place" in nowhere.stderr
        assert (await sandbox.exec("true")).exit_code == 0


async def exec_runs_in_the_workdir_with_the_declared_environment(engine: SandboxEngine) -> None:
    """The workdir is the default cwd; env adds to the spec's and wins; nothing of the host's leaks in."""
    async with opened(engine) as sandbox:
        assert await shell(sandbox, "pwd") == "/workspace\n"
        result = await sandbox.exec('pwd; echo "$GREETING $EXTRA"', cwd="/tmp", env={"EXTRA": "ex tra"})  # noqa: S108
        assert result.stdout == b"/tmp\nhello ex tra\n"
        overridden = await sandbox.exec('echo "$GREETING"', env={"GREETING": "bye"})
        assert overridden.stdout == b"bye\n"
        assert "WOODSHED" not in await shell(sandbox, "env")


async def exec_feeds_stdin(engine: SandboxEngine) -> None:
    """Standard input arrives whole, small or large, and ends; without one it is empty."""
    async with opened(engine) as sandbox:
        for size in (0, 5, 60_000, 3_000_000):
            content = bytes(index * 7 % 256 for index in range(min(size, 5_000))) * (size // 5_000 or 1)
            content = content[:size]
            result = await sandbox.exec(["sha256sum"], stdin=content)
            assert result.stdout.split()[0].decode() == hashlib.sha256(content).hexdigest(), size
        assert (await sandbox.exec(["cat"])).stdout == b""


async def exec_keeps_bytes_that_are_no_text(engine: SandboxEngine) -> None:
    """Output, arguments and paths pass byte for byte."""
    async with opened(engine) as sandbox:
        result = await sandbox.exec(r"printf '\377\000\200'")
        assert result.stdout == b"\xff\x00\x80"
        odd = "a\udcff\nb"
        assert (await sandbox.exec(["printf", "%s", odd])).stdout == b"a\xff\nb"
        await sandbox.write(f"/workspace/{odd}", b"x")
        assert [entry.name for entry in await sandbox.list("/workspace")] == [odd]


async def exec_bounds_output_and_marks_it(engine: SandboxEngine) -> None:
    """Of a flood the first and last bytes are kept and the result says truncated; the command is not disturbed."""
    async with opened(engine) as sandbox:
        flood = "head -c 20000000 /dev/zero | tr '\\0' x; echo the end; echo kept >&2"
        result = await sandbox.exec(f"echo the start; {flood}", output_bytes=10_000)
        assert result.exit_code == 0
        assert result.truncated
        assert len(result.stdout) <= 10_000
        assert result.stdout.startswith(b"the start\nx")
        assert result.stdout.endswith(b"x" + b"the end\n")
        assert result.stderr == b"kept\n"


async def exec_streams_output_as_it_comes(engine: SandboxEngine) -> None:
    """The stream callback sees every piece, in order, while the command still runs."""
    async with opened(engine) as sandbox:
        pieces: list[tuple[str, bytes]] = []
        first = asyncio.Event()

        def stream(name: str, data: bytes) -> None:
            pieces.append((name, data))
            first.set()

        running = asyncio.ensure_future(
            sandbox.exec("echo one; while [ ! -e go ]; do sleep 0.01; done; echo two >&2", stream=stream))
        await first.wait()
        assert not running.done()
        await sandbox.write("/workspace/go", b"")
        await running
        assert b"".join(data for name, data in pieces if name == "stdout") == b"one\n"
        assert b"".join(data for name, data in pieces if name == "stderr") == b"two\n"


async def exec_returns_though_a_descendant_holds_its_output(engine: SandboxEngine) -> None:
    """When the command itself has ended the call returns; the descendant lives on, not killed by its next line."""
    async with opened(engine) as sandbox:
        started = time.monotonic()
        descendant = "(for i in 1 2 3; do sleep 0.2; echo more; done; touch alive; sleep 600) &"
        result = await sandbox.exec(f"{descendant} echo now")
        assert result.stdout.startswith(b"now\n")
        assert time.monotonic() - started < 100
        assert await shell(sandbox, "while [ ! -e alive ]; do sleep 0.05; done; echo alive") == "alive\n"


async def a_timeout_kills_the_whole_tree(engine: SandboxEngine) -> None:
    """Children, and daemons that left the session and lost their parent, die with a timed-out command; others live."""
    async with opened(engine) as sandbox:
        other = await sandbox.start("exec sleep 601")
        daemon = "setsid sh -c 'trap \"\" TERM HUP; (sleep 602; sleep 602) & sleep 602' >/dev/null 2>&1 &"
        result = await sandbox.exec(f"echo begun; {daemon} sleep 603", timeout_s=0.7)
        assert result.timed_out
        assert result.exit_code == 137
        assert result.stdout == b"begun\n"
        left = await _sleepers(sandbox)
        assert "sleep 601" in left
        assert "sleep 602" not in left
        assert "sleep 603" not in left
        assert not (await sandbox.exec("true", timeout_s=60)).timed_out
        await other.kill()


async def background_processes_live_until_killed(engine: SandboxEngine) -> None:
    """start() returns at once; wait() gives the exit code; kill() ends the process with its children, twice is fine."""
    async with opened(engine) as sandbox:
        process = await sandbox.start("sleep 604 & sleep 605; echo never")
        quick = await sandbox.start("exit 3")
        assert await quick.wait() == 3
        await process.kill()
        assert await process.wait() == 137
        await process.kill()
        assert "sleep 60" not in await _sleepers(sandbox)


async def kill_all_leaves_nothing_running(engine: SandboxEngine) -> None:
    """After kill_all no process of before lives, daemons and stopped ones included, and the sandbox still works."""
    async with opened(engine) as sandbox:
        process = await sandbox.start("trap '' TERM; sleep 606")
        await sandbox.exec("setsid sh -c 'sleep 607' >/dev/null 2>&1 & sleep 608 & kill -STOP $!")
        await sandbox.kill_all()
        assert await process.wait() == 137
        assert "sleep 60" not in await _sleepers(sandbox)
        await sandbox.kill_all()


async def _sleepers(sandbox: Sandbox) -> str:
    """Command lines of the live processes inside, read without ps."""
    return await shell(sandbox, "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null; true")


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
        await _raises(FileNotFoundError, sandbox.read("missing"))
        await _raises(IsADirectoryError, sandbox.read("deep"))
        await _raises(NotADirectoryError, sandbox.list("large"))
        await _raises(FileNotFoundError, sandbox.list("missing"))
        await _raises(OSError, sandbox.read("large", max_bytes=1000))


async def _raises(kind: type[BaseException], doing: Awaitable[object]) -> BaseException:
    try:
        await doing
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


async def special_files_neither_hang_nor_pass(engine: SandboxEngine) -> None:
    """Reading or writing a FIFO, a device or a socket is refused at once; nothing blocks."""
    async with opened(engine) as sandbox:
        await shell(sandbox, "mkfifo pipe && ln -s pipe to-pipe && ln -s /dev/zero to-zero && ln -s /dev/tty to-tty")
        for path in ("pipe", "to-pipe", "to-zero", "to-tty", "/dev/null", "/dev/zero"):
            await _raises(OSError, sandbox.read(path))
            await _raises(OSError, sandbox.write(path, b"data"))


async def links_lead_to_the_sandboxs_own_files(engine: SandboxEngine) -> None:
    """A link in the way of read, write, list or upload is resolved inside; the host's files stay out of reach."""
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder, "secret")
        secret.write_bytes(b"of the host")
        async with opened(engine) as sandbox:
            await shell(sandbox, f"ln -s {secret} file; ln -s {folder} dir; ln -s /../../..{folder} up; ln -s /etc etc")
            for path in ("file", "dir/secret", "up/secret", str(secret)):
                await _raises(OSError, sandbox.read(path))
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


# -- changes and restore -----------------------------------------------------------------------------------------------

_START = "mkdir -p d/sub t g; echo one >d/one; echo two >d/two; echo s >d/sub/s; echo g >g/file; ln -s one d/link"
_WORK = ("echo new >new; mkdir made; echo x >made/x; rm d/two; mv d/one d/moved; chmod 750 d/sub; rm -rf g; mkdir g;"
         " echo other >g/other; ln -s /etc/passwd link; rm d/link; chmod 600 new; ln new hard")


async def changes_tell_what_differs(engine: SandboxEngine) -> None:
    """New, changed, moved, deleted, replaced and re-moded entries appear once each, parents before children."""
    async with opened(engine, SPEC.model_copy(update={"setup": _START})) as sandbox:
        assert (await captured(sandbox))[0].changes == ()
        await shell(sandbox, _WORK)
        changes, blobs = await captured(sandbox)
        found = by_path(changes)
        kinds = {path.removeprefix("/workspace/"): change.kind.value for path, change in found.items()}
        assert kinds == {
            "new": "file", "hard": "file", "made": "directory", "made/x": "file", "d/two": "deleted",
            "d/one": "deleted", "d/moved": "file", "d/sub": "directory", "g": "opaque", "g/other": "file",
            "link": "symlink", "d/link": "deleted",
        }
        assert found["/workspace/d/sub"].mode == 0o750
        assert found["/workspace/new"].mode == 0o600
        assert found["/workspace/link"].target == "/etc/passwd"
        moved = found["/workspace/d/moved"]
        assert blobs.content[moved.sha256 or ""] == b"one\n"
        assert moved.size == 4
        order = [change.path for change in changes.changes]
        for path in order:
            parent = path.rpartition("/")[0]
            assert parent not in order or order.index(parent) < order.index(path)


async def changes_keep_to_their_roots(engine: SandboxEngine) -> None:
    """Only what lies below a root is captured, and what is no file, directory or link is named, not captured."""
    async with opened(engine) as sandbox:
        await shell(sandbox, "mkdir a b; echo a >a/f; echo b >b/f; mkfifo a/pipe; touch a/suid; chmod 4755 a/suid;"
                             " echo x >/etc/x")
        changes, _ = await captured(sandbox, "/workspace/a")
        assert set(by_path(changes)) == {"/workspace/a", "/workspace/a/f", "/workspace/a/suid"}
        assert by_path(changes)["/workspace/a/suid"].mode == 0o755
        assert sorted(changes.refused) == ["/workspace/a/pipe: fifo", "/workspace/a/suid: setuid"]


async def changes_are_bounded(engine: SandboxEngine) -> None:
    """A sparse or a large file beyond the disk limit, or too many files, cut the capture and name the limit."""
    async with opened(engine, limits=Limits(disk_mb=2)) as sandbox:
        await shell(sandbox, "echo fine >a; head -c 1500000 /dev/zero >b; head -c 1500000 /dev/zero >c")
        changes, blobs = await captured(sandbox, "/workspace")
        assert changes.over_limit == "disk_mb"
        assert sum(len(content) for content in blobs.content.values()) <= 2 << 20
    async with opened(engine, limits=Limits(files=20)) as sandbox:
        await shell(sandbox, "for i in $(seq 40); do touch f$i; done")
        changes, _ = await captured(sandbox, "/workspace")
        assert changes.over_limit == "files"
        assert len(changes.changes) <= 20


async def restored_changes_are_the_same_world(engine: SandboxEngine) -> None:
    """A sandbox restored from captured changes looks the same inside, and captures the same changes again."""
    spec = SPEC.model_copy(update={"setup": _START})
    look = "find . -printf '%p %y %m %l\\n' | sort; find . -type f -exec sha256sum {} + | sort"
    async with opened(engine, spec) as sandbox:
        await shell(sandbox, _WORK)
        seen = await shell(sandbox, look)
        changes, blobs = await captured(sandbox)
    restored = await engine.create(spec, SandboxPolicy(), restore=(changes, blobs))
    try:
        assert await shell(restored, look) == seen
        assert (await captured(restored))[0] == changes
        assert await shell(restored, "echo more >>new && cat new && stat -c %U:%G new") == "new\nmore\nroot:root\n"
    finally:
        await restored.close()


async def a_forged_change_set_stays_inside(engine: SandboxEngine) -> None:
    """Links planted as parents and paths that climb out reach nothing on the host; they are left out or refused."""
    with tempfile.TemporaryDirectory() as folder:
        blobs = MemoryBlobs()
        digest = blobs.put(b"forged")
        link = Change(path="/workspace/l", kind=ChangeKind.SYMLINK, target=folder)
        through = Change(path="/workspace/l/f", kind=ChangeKind.FILE, sha256=digest, size=6)
        sandbox = await engine.create(SPEC, SandboxPolicy(), restore=(ChangeSet(changes=(link, through)), blobs))
        assert await shell(sandbox, "readlink l; ls -A l/ 2>/dev/null; true") == f"{folder}\n"
        await sandbox.close()
        for path in ("/workspace/../../x", "workspace/x", "//x", "/"):
            climbing = ChangeSet(changes=(Change(path=path, kind=ChangeKind.FILE, sha256=digest, size=6),))
            await _raises(EnvironmentFault, engine.create(SPEC, SandboxPolicy(), restore=(climbing, blobs)))
        assert list(Path(folder).iterdir()) == []


async def sandboxes_do_not_see_each_other(engine: SandboxEngine) -> None:
    """Files, processes, the loopback network and shared memory of one are not another's."""
    async with opened(engine) as one, opened(engine) as two:
        await one.write("/workspace/mine", b"1")
        await one.write("/dev/shm/mine", b"1")  # noqa: S108
        await one.start("exec sleep 609")
        assert await two.list("/workspace") == []
        assert await two.list("/dev/shm") == []  # noqa: S108
        assert "sleep 609" not in await _sleepers(two)
        assert one.id != two.id


async def setup_runs_and_its_failure_is_the_environments(engine: SandboxEngine) -> None:
    """What setup made is there; a setup that fails is an EnvironmentFault with the end of its output."""
    async with opened(engine, EnvironmentSpec(setup="echo ready >state")) as sandbox:
        assert await sandbox.read("/workspace/state") == b"ready\n"
    fault = await _raises(
        EnvironmentFault, engine.create(EnvironmentSpec(setup="echo the reason >&2; exit 9"), SandboxPolicy()))
    assert "the reason" in str(fault)


async def limits_hold(engine: SandboxEngine) -> None:
    """Processes beyond the limit are refused inside, and the sandbox answers all the while."""
    async with opened(engine, limits=Limits(pids=40)) as sandbox:
        await sandbox.start("i=0; while [ $i -lt 200 ]; do sleep 610 & i=$((i+1)); done")
        most = before = 0
        for _ in range(40):
            await asyncio.sleep(0.05)
            before, most = most, sum(entry.name.isdigit() for entry in await sandbox.list("/proc"))
            if most == before > 30:
                break
        assert 30 < most <= 42, most  # the sandbox's own first process is not counted
        await sandbox.kill_all()
        assert await shell(sandbox, "echo well") == "well\n"


async def close_ends_everything_at_once(engine: SandboxEngine) -> None:
    """close() is idempotent, works beside a running command, and afterwards every call raises SandboxDied."""
    sandbox = await engine.create(SPEC, SandboxPolicy())
    running = asyncio.ensure_future(sandbox.exec("trap '' TERM; sleep 611"))
    process = await sandbox.start("sleep 612")
    await asyncio.sleep(0.05)
    await asyncio.gather(sandbox.close(), sandbox.close())
    await sandbox.close()
    await _raises(SandboxDied, running)
    await _raises(SandboxDied, process.wait())
    for doing in (sandbox.exec("true"), sandbox.read("x"), sandbox.kill_all(), sandbox.changes(MemoryBlobs())):
        await _raises(SandboxDied, doing)


async def many_sandboxes_work_at_once(engine: SandboxEngine) -> None:
    """Twenty at a time, each with commands and files of its own, do not mix."""

    async def one(number: int) -> None:
        async with opened(engine) as sandbox:
            await sandbox.write("n", str(number).encode())
            results = await asyncio.gather(*(sandbox.exec(f"cat n; echo -{index}") for index in range(3)))
            assert [result.stdout for result in results] == [f"{number}-{index}\n".encode() for index in range(3)]

    await asyncio.gather(*(one(number) for number in range(20)))


CHECKS: tuple[Check, ...] = (
    exec_reports_how_a_command_ended, exec_takes_an_argv_as_it_is, exec_says_why_a_command_cannot_run,
    exec_runs_in_the_workdir_with_the_declared_environment, exec_feeds_stdin, exec_keeps_bytes_that_are_no_text,
    exec_bounds_output_and_marks_it, exec_streams_output_as_it_comes,
    exec_returns_though_a_descendant_holds_its_output, a_timeout_kills_the_whole_tree,
    background_processes_live_until_killed, kill_all_leaves_nothing_running, files_are_written_read_and_listed,
    special_files_neither_hang_nor_pass, links_lead_to_the_sandboxs_own_files, uploads_arrive_whole,
    uploads_of_the_spec_stand_there_at_the_start, changes_tell_what_differs, changes_keep_to_their_roots,
    changes_are_bounded, restored_changes_are_the_same_world, a_forged_change_set_stays_inside,
    sandboxes_do_not_see_each_other, setup_runs_and_its_failure_is_the_environments, limits_hold,
    close_ends_everything_at_once, many_sandboxes_work_at_once,
)


async def run(engine: SandboxEngine, checks: Sequence[Check] = CHECKS) -> dict[str, str | None]:
    """The outcome of each check by name: None where it holds, else why not. Does not close the engine."""
    outcomes: dict[str, str | None] = {}
    for check in checks:
        name = str(getattr(check, "__name__", check))
        try:
            await check(engine)
            outcomes[name] = None
        except Exception as error:
            outcomes[name] = f"{type(error).__name__}: {error}"
    return outcomes
