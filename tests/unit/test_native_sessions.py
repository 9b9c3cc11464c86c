"""Sessions of native sandboxes, in bash and in a POSIX shell: what holds, what ends, and what a program gets to see."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shlex
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from woodshed.errors import EnvironmentFault, SandboxDied, UsageError
from woodshed.interfaces import ExecResult
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.images.rootfs import Rootfs
from woodshed.sandbox.native import cgroups, sessions
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.sessions import NativeSession
from woodshed.sandbox.native.shells import Report, dialect, report

SPEC = EnvironmentSpec()
BASH = pytest.param("bash", marks=pytest.mark.skipif(
    shutil.which("bash", path="/usr/bin:/bin") is None, reason="bash is missing: apt install bash"))


class OfShell:
    """The host's root with a shell of our choice."""

    def __init__(self, images: Images, shell: str) -> None:
        self._images, self._shell = images, shell

    def prepare(self, spec: EnvironmentSpec) -> Rootfs:
        return dataclasses.replace(self._images.prepare(spec), shell=f"/bin/{self._shell}")


@pytest.fixture(params=[BASH, "sh"])
async def engine(request: pytest.FixtureRequest, shed_home: Path, images: Images) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home, images=OfShell(images, request.param))
    yield made
    await made.close()


@pytest.fixture
async def box(engine: NativeEngine) -> NativeSandbox:
    return await engine.create(SPEC, SandboxPolicy())


@pytest.fixture
async def session(box: NativeSandbox) -> NativeSession:
    return await box.session()


async def said(session: NativeSession, command: str, **options: float) -> str:
    """Standard output of a command that must succeed and complain of nothing."""
    result = await session.run(command, **options)  # type: ignore[arg-type]  # timeout_s alone
    assert (result.exit_code, result.stderr) == (0, b""), result
    return result.stdout.decode()


async def test_a_program_gets_three_descriptors(session: NativeSession) -> None:
    """Neither the channel nor the text of a session is open in what it starts; a job in the background has copies
    of neither by name."""
    assert (await said(session, "ls /proc/self/fd")).split() == ["0", "1", "2", "3"]  # 3 is the directory itself
    assert await said(session, "readlink /proc/self/fd/0") == "/dev/null\n"
    started = "sleep 600 & until grep -q sleep /proc/$!/comm; do :; done; "  # before that it is a copy of the shell
    assert "memfd" not in await said(session, started + "ls -l /proc/$!/fd; kill $!; wait $! 2>/dev/null || true")


async def test_the_sessions_socket_cannot_be_opened(session: NativeSession, box: NativeSandbox) -> None:
    """Where the shell's channel stands in /proc it opens for nobody; nor does the text, in a box with its own ids."""
    assert await said(session, "readlink /proc/$$/fd/0") == "/dev/null\n"  # while a command runs
    tries = ("for f in /proc/$$/fd/*; do case $(readlink $f) in socket*) (: <$f) 2>/dev/null && echo opened $f;;"
             " *memfd*) (: >>$f) 2>/dev/null && echo wrote $f;; esac; done; true")
    opened = await said(session, tries)
    assert "opened" not in opened
    assert "wrote" not in opened or not box.world.privileged
    assert await said(session, "ls -l /proc/$$/fd | grep -c socket") == "1\n"  # the control: there is one to try


LIE = """
IFS= read -r line <&10
[[ $line =~ [0-9a-f]{32} ]] && printf '42\\n/forged\\n%s\\n' "${BASH_REMATCH[0]}" >&10
sleep 600
"""


async def test_only_the_shell_itself_can_lie_about_itself(session: NativeSession, box: NativeSandbox) -> None:
    """What runs in the shell can read its copy of the channel and forge a report; no program that it starts can.

    The forged one is the control of the other: the same words, from a child, end nothing.
    """
    if box.world.shell != "/bin/bash":
        pytest.skip("only bash can name the descriptor that it put away")
    honest = await session.run(f"bash -c {shlex.quote(LIE)}; echo end", timeout_s=0.3)
    assert (honest.timed_out, honest.exit_code) == (True, 137)
    forged = await session.run(LIE, timeout_s=20)
    assert (forged.timed_out, forged.exit_code) == (False, 42)
    assert (await session.run("echo late", timeout_s=0.3)).timed_out  # the shell still sleeps: it harmed itself
    assert (await box.exec("echo well")).stdout == b"well\n"


async def test_options_and_traps_of_the_user_hold(session: NativeSession) -> None:
    """set -u, set -f, umask and traps stay; set -e ends the shell at the first failure, as in any shell."""
    await said(session, "set -uf; umask 077; trap 'echo bye' EXIT")
    assert await said(session, "umask; echo *") == "0077\n*\n"
    ended = await session.run("exit 3")
    assert (ended.exit_code, ended.stdout) == (3, b"bye\n")
    assert (await session.run("set -e; true")).exit_code == 0
    assert await said(session, "! true || echo on") == "on\n"
    failed = await session.run("false; echo never")
    assert (failed.exit_code, failed.stdout) == (1, b"")
    assert b"new" in (await session.run("true")).stderr


async def test_tracing_shows_the_commands_and_little_of_ours(session: NativeSession) -> None:
    """Under set -x each of the user's commands is traced once, and no token of ours is shown."""
    await session.run("set -x")
    traced = (await session.run("echo one; echo two")).stderr.decode()
    assert traced.count("echo one") == traced.count("echo two") == 1
    assert len(traced.splitlines()) <= 3


@pytest.mark.parametrize("command", [
    "sleep 600; echo never", "f() { sleep 600; echo never; }; f; echo never\necho never", "while sleep 600; do :; done",
    "while :; do :; done; echo never", "sleep 600 & wait; echo never", "x=$(sleep 600); echo never",
    "f() { while :; do g; done; }; g() { for i in 1 2; do sleep 600; done; }; f; echo never",
    "sleep 600 | cat; echo never", "(sleep 600; echo never); echo never", "for i in 1 2 3; do sleep 600; done",
    "eval 'sleep 600; echo never'; echo never", "sh -c 'sleep 600; echo never'; echo never",
    "trap '' TERM INT HUP; sleep 600; echo never", "cat /dev/zero >/dev/null; echo never",
])
async def test_a_timeout_ends_any_command_and_spares_the_shell(session: NativeSession, command: str) -> None:
    """Nothing of a command that is timed out runs on, whatever it is made of, and the shell keeps its state."""
    await said(session, "KEPT=kept; cd /usr")
    result = await session.run(command, timeout_s=0.15)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 137, b"")
    kept = await session.run("echo $KEPT; pwd")
    assert kept.stdout == b"kept\n/usr\n"
    assert b"woodshed" not in kept.stderr


async def test_a_shell_that_does_not_give_up_is_replaced(
    session: NativeSession, box: NativeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without our trap the shell itself is ended: that result says so, once; directory and earlier jobs are kept."""
    monkeypatch.setattr(sessions, "_INTERRUPTS", 2)
    await said(session, "sleep 600 & cd /tmp")
    result = await session.run("trap '' 64; cd /usr/bin; LOST=1; while :; do sleep 0.05; done", timeout_s=0.1)
    assert (result.timed_out, result.exit_code) == (True, 137)
    assert b"woodshed" in result.stderr
    assert await said(session, "echo ${LOST-lost}; pwd") == "lost\n/usr/bin\n"
    assert (await box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout.count(b"sleep 600") == 1
    frozen = await session.run("kill -STOP $$; echo never", timeout_s=0.1)
    assert frozen.timed_out
    assert b"never" not in frozen.stdout
    assert await said(session, "pwd") == "/usr/bin\n"


async def test_jobs_speak_up_with_the_next_command(session: NativeSession) -> None:
    """What a background job says between two commands begins the next result; a flood of it is bounded, and waits."""
    await said(session, "{ sleep 0.1; echo job; } & true")
    await asyncio.sleep(0.25)
    assert await said(session, "echo next") == "job\nnext\n"
    await said(session, "yes & JOB=$!")
    before = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - before < 0.25  # it is a few pieces that are read, not all it can say
    flooded = await session.run("kill $JOB; wait $JOB; echo over")
    assert flooded.stdout.endswith(b"over\n")
    assert len(flooded.stdout) < 8_000_000
    assert (await session.run("echo clean")).stdout == b"clean\n"


async def test_a_cancelled_run_leaves_the_session_usable(session: NativeSession) -> None:
    """Whenever a run is cancelled, what it started ends, and what comes after runs in order with the state kept."""
    await said(session, "KEPT=kept")
    for pause_s in (0.0, 0.0005, 0.002, 0.05):
        running = asyncio.create_task(session.run("sleep 600; KEPT=changed"))
        await asyncio.sleep(pause_s)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await session.run("echo $KEPT")).stdout == b"kept\n"


async def test_what_cannot_be_is_refused(box: NativeSandbox) -> None:
    """A NUL, a closed session, a directory that is not there: each is said plainly, and nothing is left of it."""
    session = await box.session()
    with pytest.raises(UsageError, match="NUL"):
        await session.run("echo \0")
    running = asyncio.create_task(session.run("sleep 600"))
    queued = asyncio.create_task(session.run("true"))
    await asyncio.sleep(0.05)
    await session.close()
    assert (await running).exit_code == 137
    for doing in (queued, session.run("true")):
        with pytest.raises(UsageError, match="closed"):
            await doing
    with pytest.raises(EnvironmentFault, match="/no/such/place"):
        await box.session(cwd="/no/such/place")
    while [entry.name for entry in await box.list("/proc") if entry.name.isdigit()] != ["1"]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # no event inside tells


async def test_a_directory_that_went_away_is_said(box: NativeSandbox) -> None:
    """A new shell whose directory is gone cannot begin: 126 with the reason; the next one begins in the workdir."""
    session = await box.session()
    await session.run("mkdir -p /tmp/gone/deep; cd /tmp/gone/deep")
    await session.run("rm -r /tmp/gone; exit 0")
    result = await session.run("echo never")
    assert (result.exit_code, result.stdout) == (126, b"")
    assert b"/tmp/gone/deep" in result.stderr
    again = await session.run("pwd")
    assert again.stdout == b"/workspace\n"
    assert b"/workspace" in again.stderr


async def test_a_dead_box_ends_its_sessions(engine: NativeEngine) -> None:
    """A session of a box that dies raises SandboxDied, for the command that ran and for any after it."""
    box = await engine.create(SPEC, SandboxPolicy())
    session = await box.session()
    running = asyncio.create_task(session.run("sleep 600"))
    await asyncio.sleep(0.05)
    os.kill(box.pid, 9)
    with pytest.raises(SandboxDied):
        await running
    with pytest.raises(SandboxDied):
        await session.run("true")
    await session.close()
    await box.close()


async def test_a_session_works_with_hardly_any_files(engine: NativeEngine) -> None:
    """Where processes may open few files the session takes low numbers for its own."""
    box = await engine.create(SPEC, SandboxPolicy(limits=Limits(open_files=64)))
    session = await box.session()
    assert await said(session, "A=1; ls /proc/self/fd | wc -l") == "4\n"
    assert (await session.run("sleep 600", timeout_s=0.1)).timed_out
    assert await said(session, "echo $A") == "1\n"


@pytest.mark.skipif("memory" not in cgroups.control().parents, reason="memory cgroups are not ours to make: be root")
async def test_a_session_under_limits_is_the_same(engine: NativeEngine) -> None:
    """With cgroups a session starts, keeps its state, and a command killed for memory says so."""
    box = await engine.create(SPEC, SandboxPolicy(limits=Limits(memory_mb=64)))
    session = await box.session()
    await said(session, "KEPT=kept")
    hog = await session.run("python3 -c 'print(len(bytearray(300 << 20)))'")
    assert hog.oom_killed
    assert await said(session, "echo $KEPT; ls /proc/self/fd | wc -l") == "kept\n4\n"


async def test_sessions_of_a_box_do_not_mix(box: NativeSandbox) -> None:
    """Twenty sessions at once keep to themselves; a timeout in one ends nothing in another."""
    opened = await asyncio.gather(*(box.session() for _ in range(20)))
    await asyncio.gather(*(one.run(f"N={number}") for number, one in enumerate(opened)))
    sleeping = [asyncio.create_task(one.run("sleep 1; echo $N")) for one in opened[:10]]
    assert all(result.timed_out for result in await asyncio.gather(
        *(one.run("sleep 600", timeout_s=0.1) for one in opened[10:])))
    results: list[ExecResult] = await asyncio.gather(*sleeping, *(one.run("echo $N") for one in opened[10:]))
    assert [int(result.stdout) for result in results] == list(range(20))


def test_a_report_is_read_only_when_it_is_whole() -> None:
    """A report ends with its token; a directory may hold line ends and any byte; what is no report is none."""
    assert report(b"3\n/a\nb\xff\ntoken\n", b"token") == Report(3, "/a\nb\udcff")
    for said_ in (b"", b"3\n/a\ntoken", b"3\n/a\nother\n", b"x\n/a\ntoken\n", b"3\n/a\n", b"\ntoken\n"):
        assert report(said_, b"token") is None


def test_each_shell_is_spoken_to_in_its_dialect() -> None:
    """bash gets numbers that no script uses, unless they are beyond the limit; others get single digits."""
    assert dialect("/bin/bash", 1024).text > 200
    assert dialect("/usr/bin/bash", 64).text < 10
    assert dialect("/bin/sh", 1024).name == 9
    tokens = {dialect("/bin/sh", 1024).run(1, interrupted=False)[1] for _ in range(10)}
    assert len(tokens) == 10
