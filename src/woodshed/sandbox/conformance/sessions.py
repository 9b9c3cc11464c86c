"""Shells that stay, terminals, processes that are fed and signalled, and commands of other users."""

from __future__ import annotations

import asyncio

from woodshed.errors import SandboxDied, UsageError
from woodshed.interfaces import SandboxEngine, Terminal
from woodshed.model import SandboxPolicy
from woodshed.sandbox.conformance.kit import SPEC, Check, gone, needs, opened, raises, shell, sleepers


@needs("session")
async def a_session_keeps_what_its_commands_set(engine: SandboxEngine) -> None:
    """Directory, variables, functions, options and the last status hold from command to command; exec sees none."""
    async with opened(engine) as sandbox:
        session = await sandbox.session(cwd="/usr", env={"EXTRA": "ex tra"})
        setting = "A=1; export B=2; f() { echo f $A; }; set -f; cd /tmp"
        first = await session.run(f'pwd; echo "$GREETING $EXTRA"; {setting}')
        assert (first.exit_code, first.stdout, first.stderr) == (0, b"/usr\nhello ex tra\n", b"")
        assert (await session.run("f; sh -c 'echo $A-$B'; pwd; echo *")).stdout == b"f 1\n-2\n/tmp\n*\n"
        assert (await session.run("echo out; echo err >&2; (exit 7)")).exit_code == 7
        assert (await session.run("echo $?")).stdout == b"7\n"
        assert await shell(sandbox, 'echo "$A$B"; pwd') == "\n/workspace\n"
        job = await session.run("sleep 620 & echo $!")
        assert (await session.run(f"kill {job.stdout.decode().strip()}; wait $!")).exit_code == 143
        await session.close()
        await session.close()
        await raises(UsageError, session.run("true"))


@needs("session")
async def a_session_survives_what_is_wrong_with_a_command(engine: SandboxEngine) -> None:
    """Open quotes, here-documents, syntax errors, break and odd bytes stay in their command; stdin is empty."""
    async with opened(engine) as sandbox:
        session = await sandbox.session()
        await session.run("KEPT=kept")
        for wrong in ("echo 'open", "if", "fi; )", "echo $(", "cat <<END\ntext", "break 9", "return 3", "no-such"):
            await session.run(wrong, timeout_s=20)
        assert (await session.run("cat; read x; echo $? $KEPT", timeout_s=20)).stdout == b"1 kept\n"
        assert (await session.run("echo '\udcff\n\\'")).stdout == b"\xff\n\\\n"
        assert (await session.run(f": {'x' * 3_000_000}; echo long")).stdout == b"long\n"
        assert (await session.run("")).exit_code == 0
        await raises(UsageError, session.run("echo \0"))
        assert (await session.run("echo $KEPT")).stdout == b"kept\n"


@needs("session")
async def a_session_says_when_its_shell_has_ended(engine: SandboxEngine) -> None:
    """exit gives its code; the next command gets a new shell in the same directory, and its stderr says so, once."""
    async with opened(engine) as sandbox:
        session = await sandbox.session()
        for ending, code in (("exit 5", 5), ("kill -9 $$", 137), ("exec sh -c 'exit 6'", 6)):
            assert (await session.run("cd /usr/bin; LOST=1")).exit_code == 0
            assert (await session.run(ending)).exit_code == code
            anew = await session.run("echo ${LOST-lost}; pwd")
            assert anew.stdout == b"lost\n/usr/bin\n"
            assert b"new" in anew.stderr
            assert (await session.run("true")).stderr == b""


@needs("session")
async def a_timeout_in_a_session_spares_the_shell(engine: SandboxEngine) -> None:
    """What the command started is killed and nothing more of it runs; the shell and earlier jobs live on."""
    async with opened(engine) as sandbox:
        session = await sandbox.session()
        await session.run("KEPT=kept; sleep 621 & cd /usr")
        inner = "g() { f; echo never; }; f() { setsid sleep 622 & sleep 623; echo never; }; g; echo never\necho never"
        result = await session.run(f"echo begun; {inner}", timeout_s=0.5)
        assert (result.timed_out, result.exit_code, result.stdout) == (True, 137, b"begun\n")
        after = await session.run("echo $KEPT; pwd")
        assert after.stdout == b"kept\n/usr\n"
        left = await sleepers(sandbox)
        assert "sleep 621" in left
        assert "sleep 622" not in left
        assert "sleep 623" not in left
        stubborn = await session.run("cd /tmp; while :; do sleep 1; done", timeout_s=0.3)
        assert stubborn.timed_out
        assert (await session.run("pwd")).stdout in (b"/tmp\n", b"/usr\n")
        await session.close()
        await gone(sandbox, "sleep 62")


@needs("session")
async def commands_of_a_session_take_turns(engine: SandboxEngine) -> None:
    """Those run at once run one after the other, in order; one that is cancelled makes way; two sessions are apart."""
    async with opened(engine) as sandbox:
        one, two = await sandbox.session(), await sandbox.session()
        await one.run("N=0")
        await two.run("N=100")
        results = await asyncio.gather(*(who.run("N=$((N+1)); echo $N") for _ in range(10) for who in (one, two)))
        assert [int(result.stdout) for result in results[::2]] == list(range(1, 11))
        assert [int(result.stdout) for result in results[1::2]] == list(range(101, 111))
        long = asyncio.ensure_future(one.run("sleep 624"))
        queued = asyncio.ensure_future(one.run("N=broken"))
        last = asyncio.ensure_future(one.run("echo $N"))
        await asyncio.sleep(0.1)
        queued.cancel()
        long.cancel()
        assert (await last).stdout == b"10\n"
        await gone(sandbox, "sleep 624")


@needs("session")
async def no_output_forges_the_end_of_a_command(engine: SandboxEngine) -> None:
    """Whatever a program writes to what it has, or can open of the shell, the command ends when it ends."""
    forge = ("import os, glob\n"
             "for path in [*glob.glob('/proc/%d/fd/*' % os.getppid()), *glob.glob('/proc/self/fd/*')]:\n"
             "    for flags in (os.O_WRONLY, os.O_RDONLY):\n"
             "        try: fd = os.open(path, flags | os.O_NONBLOCK)\n"
             "        except OSError: continue\n"
             "        try: os.write(fd, b'0\\n/\\n' * 10)\n"
             "        except OSError: pass\n"
             "for fd in range(3, 300):\n"
             "    try: os.write(fd, b'0\\n/\\n')\n"
             "    except OSError: pass\n")
    async with opened(engine) as sandbox:
        session = await sandbox.session()
        await sandbox.write("/workspace/forge.py", forge.encode())
        result = await session.run("cd /usr; python3 /workspace/forge.py; sleep 0.2; echo end; (exit 3)", timeout_s=60)
        assert (result.exit_code, result.timed_out) == (3, False)
        assert result.stdout.endswith(b"end\n")
        assert (await session.run("pwd")).stdout == b"/usr\n"


@needs("session")
async def a_session_bounds_and_streams_output(engine: SandboxEngine) -> None:
    """Of a flood both ends are kept and it is marked; the stream sees every piece; the next command starts clean."""
    async with opened(engine) as sandbox:
        session, seen = await sandbox.session(), bytearray()
        result = await session.run("echo start; head -c 3000000 /dev/zero | tr '\\0' x; echo end", output_bytes=10_000,
                                   stream=lambda name, data: seen.extend(data))
        assert result.truncated
        assert (result.stdout[:6], result.stdout[-5:], len(result.stdout)) == (b"start\n", b"xend\n", 10_000)
        assert len(seen) == 3_000_010
        assert (await session.run("echo clean")).stdout == b"clean\n"


async def _until(terminal: Terminal, text: bytes) -> bytes:
    shown = b""
    while text not in shown:
        piece = await asyncio.wait_for(terminal.read(), 30)
        assert piece, shown
        shown += piece
    return shown


@needs("pty")
async def a_terminal_types_shows_and_resizes(engine: SandboxEngine) -> None:
    """A command on a terminal has its size, hears of a new one, gets what is typed, and ends the reading."""
    async with opened(engine) as sandbox:
        # Some shells end a read when they have a signal to answer: hence the first loop.
        script = ("trap 'stty size' WINCH; tty; stty size; until test \"$line\" = typed; do read line; done; "
                  "echo got:$line; while read line; do :; done; echo over; exit 4")
        terminal = await sandbox.pty(["sh", "-c", script], rows=30, columns=100, env={"PS1": ""})
        shown = await _until(terminal, b"30 100")
        assert b"not a tty" not in shown
        terminal.resize(40, 132)
        await terminal.write(b"typed\n")
        await _until(terminal, b"got:typed")
        await terminal.write(b"\n\x04")  # the end of input
        shown = b""
        while piece := await terminal.read(7):
            shown += piece
        assert b"over" in shown
        assert await terminal.process.wait() == 4
        assert await terminal.read() == b""
        await raises(OSError, terminal.write(b"x" * 1_000_000))
        await terminal.close()
        await raises(UsageError, sandbox.pty(rows=0))


@needs("pty")
async def closing_a_terminal_ends_its_tree(engine: SandboxEngine) -> None:
    """What was started on a terminal dies with it, also what ignores the hang-up and a flood nobody reads."""
    async with opened(engine) as sandbox:
        terminal = await sandbox.pty(["sh", "-c", "trap '' HUP; setsid sleep 625 & sleep 626 & echo up; exec yes 627"])
        await _until(terminal, b"up")
        await terminal.close()
        await terminal.close()
        assert await terminal.read() == b""
        assert await terminal.process.wait() != 0  # killed, or told by its writes first that nobody is there
        await gone(sandbox, "sleep 62")
        await gone(sandbox, "yes 627")


async def background_processes_are_fed_and_signalled(engine: SandboxEngine) -> None:
    """stdin arrives in order and ends, output streams, a signal reaches the whole group, and an odd one is refused."""
    async with opened(engine) as sandbox:
        seen: list[tuple[str, bytes]] = []
        fed = await sandbox.start("sha256sum; echo done >&2", stdin=True, stream=lambda *piece: seen.append(piece))
        for _ in range(40):
            await fed.write(b"0123456789" * 10_000)  # more than a pipe holds
        fed.close_stdin()
        fed.close_stdin()
        assert await fed.wait() == 0
        expected = await shell(sandbox, "yes 0123456789 | tr -d '\\n' | head -c 4000000 | sha256sum")
        await asyncio.sleep(0)
        assert b"".join(data for name, data in seen if name == "stdout").decode() == expected
        assert b"".join(data for name, data in seen if name == "stderr") == b"done\n"
        await raises(OSError, fed.write(b"more"))
        await fed.signal(15)
        group = await sandbox.start("trap 'echo caught >caught; exit 9' USR1; sleep 628 & wait; exit 1")
        # Until it runs it is a shell, which may miss a signal. (ASYNC110: no event inside tells.)
        while "sleep 628" not in await sleepers(sandbox):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await group.signal(10)
        assert await group.wait() == 9
        assert await sandbox.read("caught") == b"caught\n"
        await gone(sandbox, "sleep 628")  # the shell may end before the one that it waited for
        for number in (0, -9, 65, 4096):
            await raises(UsageError, group.signal(number))


async def feeding_what_takes_no_more_is_an_error(engine: SandboxEngine) -> None:
    """A process that ends, or closes its stdin, while it is fed breaks the pipe; a dead sandbox is told apart."""
    async with opened(engine) as sandbox:
        for ending in ("head -c 100000 >/dev/null", "exec 0<&-; sleep 629"):
            process = await sandbox.start(ending, stdin=True)
            await raises(OSError, process.write(b"x" * 10_000_000))
            await process.kill()
        unread = await sandbox.start("sleep 630", stdin=True)
        writing = asyncio.ensure_future(unread.write(b"x" * 10_000_000))
        await asyncio.sleep(0.05)
        await unread.kill()
        await raises(OSError, writing)
    dying = await engine.create(SPEC, SandboxPolicy())
    process = await dying.start("sleep 631", stdin=True)
    writing = asyncio.ensure_future(process.write(b"x" * 10_000_000))
    await asyncio.sleep(0.05)
    await dying.close()
    await raises(SandboxDied, writing)
    await raises(SandboxDied, process.write(b"x"))
    await raises(SandboxDied, process.signal(15))
    await process.kill()


@needs("users")
async def commands_run_as_the_user_asked_for(engine: SandboxEngine) -> None:
    """A user other than 0 has its own ids and no rights of root's, in exec, start and wherever else it can be asked."""
    async with opened(engine) as sandbox:
        result = await sandbox.exec("id -u; id -g; (echo x >/etc/mine) || echo refused", user=1234)
        assert result.stdout == b"1234\n1234\nrefused\n"
        await shell(sandbox, "mkdir -m 777 open; mkdir -m 700 closed")
        process = await sandbox.start("touch open/mine", user=1234)
        assert await process.wait() == 0
        assert await shell(sandbox, "stat -c %u:%g open/mine") == "1234:1234\n"
        assert (await sandbox.exec("true", cwd="/workspace/closed", user=1234)).exit_code == 126
        if "session" in engine.capabilities:
            session = await sandbox.session(user=1234, cwd="/tmp")  # noqa: S108 (the sandbox's)
            assert (await session.run("id -u; pwd")).stdout == b"1234\n/tmp\n"
            assert (await session.run("sleep 632", timeout_s=0.2)).timed_out
            assert (await session.run("pwd")).stdout == b"/tmp\n"


CHECKS: tuple[Check, ...] = (
    a_session_keeps_what_its_commands_set, a_session_survives_what_is_wrong_with_a_command,
    a_session_says_when_its_shell_has_ended, a_timeout_in_a_session_spares_the_shell, commands_of_a_session_take_turns,
    no_output_forges_the_end_of_a_command, a_session_bounds_and_streams_output, a_terminal_types_shows_and_resizes,
    closing_a_terminal_ends_its_tree, background_processes_are_fed_and_signalled,
    feeding_what_takes_no_more_is_an_error, commands_run_as_the_user_asked_for,
)
