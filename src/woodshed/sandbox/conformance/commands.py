"""Commands: how they start, end, are fed and read, and die with all that came of them."""

from __future__ import annotations

import asyncio
import hashlib
import time

from woodshed.interfaces import SandboxEngine
from woodshed.sandbox.conformance.kit import Check, opened, shell, sleepers


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
        while "sleep 601" not in await sleepers(sandbox):  # noqa: ASYNC110 (a busy machine takes its time)
            await asyncio.sleep(0.05)
        daemon = "setsid sh -c 'trap \"\" TERM HUP; (sleep 602; sleep 602) & sleep 602' >/dev/null 2>&1 &"
        result = await sandbox.exec(f"echo begun; {daemon} sleep 603", timeout_s=0.7)
        assert result.timed_out
        assert result.exit_code == 137
        assert result.stdout == b"begun\n"
        left = await sleepers(sandbox)
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
        assert "sleep 60" not in await sleepers(sandbox)


async def kill_all_leaves_nothing_running(engine: SandboxEngine) -> None:
    """After kill_all no process of before lives, daemons and stopped ones included, and the sandbox still works."""
    async with opened(engine) as sandbox:
        process = await sandbox.start("trap '' TERM; sleep 606")
        await sandbox.exec("setsid sh -c 'sleep 607' >/dev/null 2>&1 & sleep 608 & kill -STOP $!")
        await sandbox.kill_all()
        assert await process.wait() == 137
        assert "sleep 60" not in await sleepers(sandbox)
        await sandbox.kill_all()


CHECKS: tuple[Check, ...] = (
    exec_reports_how_a_command_ended, exec_takes_an_argv_as_it_is, exec_says_why_a_command_cannot_run,
    exec_runs_in_the_workdir_with_the_declared_environment, exec_feeds_stdin, exec_keeps_bytes_that_are_no_text,
    exec_bounds_output_and_marks_it, exec_streams_output_as_it_comes,
    exec_returns_though_a_descendant_holds_its_output, a_timeout_kills_the_whole_tree,
    background_processes_live_until_killed, kill_all_leaves_nothing_running,
)
