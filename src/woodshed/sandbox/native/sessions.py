"""A shell of a box that stays: what one command sets, the next one finds."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from woodshed.errors import EnvironmentFault, SandboxDied, UsageError
from woodshed.interfaces import ExecResult, Stream
from woodshed.sandbox.native.collected import Collected
from woodshed.sandbox.native.commands import Commands, both
from woodshed.sandbox.native.inside import wire
from woodshed.sandbox.native.inside.commands import EXIT_NOT_FOUND, EXIT_NOT_RUN
from woodshed.sandbox.native.link import Reply
from woodshed.sandbox.native.output import Kept
from woodshed.sandbox.native.shells import Report, dialect, report

_MARKS = 4096
"""Ids that tell the commands of one shell apart when one is to be ended; a longer life uses them again."""
_LONGEST_REPORT = 1 << 16
_BETWEEN = 1 << 16
"""Bytes kept of what background jobs say between two commands; the next result begins with it."""
_SIP_EVERY_S = 0.05
"""A job that says more between two commands is read this often, a piece at a time: its flood is not to be our work."""
_INTERRUPTS, _INTERRUPT_EVERY_S = 8, 0.1
"""A shell that has not given up its command by then is ended itself."""
_STARTED_ANEW = "woodshed: the shell of this session had ended; this is a new one in {}\n"
_ENDED = b"woodshed: the shell did not give up its command and was ended; the next command gets a new one\n"


class _Shell:
    """One shell and its descriptors: ``say`` something, and its ``reports`` and ends come as futures."""

    def __init__(self, commands: Commands, cwd: str, env: Mapping[str, str] | None, user: int | None) -> None:
        """Raises SandboxDied, EnvironmentFault, Unsupported."""
        world = commands.world
        self._commands, self._loop = commands, commands.loop
        self.dialect = dialect(world.shell, world.limits.open_files)
        self._status, self._interrupted, self._runs = 0, False, 0
        self._worked = False
        self._said, self._token = b"", b""
        self._reported: asyncio.Future[Report] = self._loop.create_future()
        self.between = Kept(_BETWEEN), Kept(_BETWEEN)
        self.collected: Collected | None = None
        self._sips: asyncio.TimerHandle | None = None
        message = commands.message(self.dialect.argv, cwd, env, user)
        message |= {"marks": _MARKS, "at": [0, 1, 2, self.dialect.text], "id": commands.link.next_id(_MARKS)}
        self.id: int = message["id"]
        self.pipes = both(self._take_out, self._take_err)
        try:
            self._text = os.memfd_create("command", os.MFD_CLOEXEC)
            os.fchmod(self._text, 0o444)  # to be read: in a box with ids of its own nobody inside owns it
            self._socket, inner = socket.socketpair()
        except OSError as error:
            self._close_pipes()
            raise EnvironmentFault("this process may open no more files (ulimit -n)") from error
        self._open = True
        self._socket.setblocking(False)
        self.ended = self._launch(message, inner)
        self._fd = self._socket.fileno()
        self._loop.add_reader(self._fd, self._hear)
        commands.hold(self)
        self._say(self.dialect.prepare())

    def _launch(self, message: dict[str, object], inner: socket.socket) -> asyncio.Future[Reply]:
        reading = -1
        try:
            reading = os.open(f"/proc/self/fd/{self._text}", os.O_RDONLY | os.O_CLOEXEC)
            return self._commands.link.request(
                message, [inner.fileno(), self.pipes[0].inner, self.pipes[1].inner, reading])
        except OSError as error:
            self._close_all()
            raise EnvironmentFault(f"the session's shell cannot be started: {error.strerror}") from error
        except BaseException:
            self._close_all()
            raise
        finally:
            inner.close()
            if reading >= 0:
                os.close(reading)
            for pipe in self.pipes:
                if pipe.inner >= 0:
                    pipe.sent()

    def _take_out(self, data: bytes) -> None:
        if self.collected is not None:
            self.collected.out(data)
        else:
            self._take_between(self.between[0], data)

    def _take_err(self, data: bytes) -> None:
        if self.collected is not None:
            self.collected.err(data)
        else:
            self._take_between(self.between[1], data)

    def _take_between(self, kept: Kept, data: bytes) -> None:
        kept.add(data)
        if kept.truncated and self._sips is None:
            for pipe in self.pipes:
                pipe.detach(self._loop)
            self._sips = self._loop.call_later(_SIP_EVERY_S, self._sip)

    def _sip(self) -> None:
        self._sips = self._loop.call_later(_SIP_EVERY_S, self._sip)
        for pipe in self.pipes:
            pipe.take_some(self._loop)

    def _drink(self) -> None:
        """Read all as it comes."""
        if self._sips is not None:
            self._sips.cancel()
            self._sips = None
        for pipe in self.pipes:
            pipe.attach(self._loop)

    # -- one command ---------------------------------------------------------------------------------------------------

    def begin(self, command: bytes, collected: Collected) -> asyncio.Future[Report]:
        """Hand over a command; the future is its report, if one comes."""
        self._runs += 1
        self._reported = self._loop.create_future()
        lines, self._token = self.dialect.run(self.mark, interrupted=self._interrupted)
        self._said, self._interrupted = b"", False
        text = self.dialect.text_of(command, self._status)
        os.ftruncate(self._text, 0)
        view, at = memoryview(text), 0
        while at < len(text):
            at += os.pwrite(self._text, view[at:], at)
        self.collected = collected
        for kept, take in zip(self.between, (collected.out, collected.err), strict=True):
            if said := kept.bytes():
                take(said)
        self.between = Kept(_BETWEEN), Kept(_BETWEEN)
        self._drink()
        self._say(lines)
        return self._reported

    @property
    def mark(self) -> int:
        """What the descendants of the present command are marked with."""
        return self.id + 1 + self._runs % _MARKS

    def _say(self, lines: bytes) -> None:
        # A few hundred bytes at a time: they fit, unless what runs in the shell reads nothing any more.
        with suppress(OSError):
            self._socket.send(lines)

    def _hear(self) -> None:
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._fd)  # its end is told by its first process's report
            return
        self._said = (self._said + data)[-_LONGEST_REPORT:]
        heard = report(self._said, self._token)
        if heard is not None and not self._reported.done():
            self._status, self._worked = heard.status, True
            self._reported.set_result(heard)

    def settle(self) -> None:
        """The command is over: what the shell's programs wrote until now is its output."""
        for pipe in self.pipes:
            pipe.take_present(self._loop)
        self.collected = None

    async def interrupt(self) -> str:
        """End what the command started, and have the shell give it up; the shell's directory, if that can be told."""
        self._interrupted = True
        answer, _ = await self._commands.link.end({"op": "kill", "target": self.mark, "shell": self.id})
        return str(answer.get("cwd", ""))

    async def end(self) -> None:
        """End the shell alone; what earlier commands left in the background lives on."""
        await self._commands.link.request(
            {"op": "signal", "target": self.id, "number": int(signal.SIGKILL), "alone": 1})

    async def end_all(self) -> None:
        """End the shell with everything it ever started."""
        await self._commands.kill_tree(self.id, _MARKS)

    # -- its descriptors -----------------------------------------------------------------------------------------------

    @property
    def refused(self) -> bool:
        """Whether it could not even be started."""
        if self._worked or not self.ended.done() or self.ended.exception():
            return False
        return self.ended.result()[0]["exit"] in (EXIT_NOT_RUN, EXIT_NOT_FOUND)

    def retire(self) -> None:
        """It has ended: take what it left, let its background jobs write on into nothing."""
        if self._open:
            self._commands.forget(self)
            self._commands.finish(self.pipes)
            self.drop()

    def drop(self) -> None:
        """Let go of its descriptors. Idempotent."""
        if self._open:
            self._loop.remove_reader(self._fd)
            self._close_all()

    def _close_all(self) -> None:
        self._open = False
        if self._sips is not None:
            self._sips.cancel()
        self._socket.close()
        os.close(self._text)
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in self.pipes:
            pipe.close(self._loop)


class NativeSession:
    """A shell that stays. See :class:`woodshed.interfaces.Session`.

    Between commands its background jobs may speak: the next result begins with that (both ends of it, where it is
    long), as on a terminal. A command that
    leaves the shell (``exit``, ``exec``, a failure under ``set -e``) ends with the shell's own exit code.
    """

    def __init__(self, commands: Commands, cwd: str, env: Mapping[str, str] | None, user: int | None) -> None:
        self._commands, self._cwd, self._env, self._user = commands, cwd, env, user
        self._shell: _Shell | None = None
        self._anew = self._closed = False
        self._last: asyncio.Task[ExecResult] | None = None

    async def open(self) -> None:
        """Start the shell. Raises EnvironmentFault with its reason where it does not run, SandboxDied."""
        result = await self.run("")
        if self._shell is None:
            raise EnvironmentFault(f"the session's shell cannot be started: {result.stderr.decode(errors='replace')}")

    async def run(
        self, command: str, *, timeout_s: float | None = None, stream: Stream | None = None,
        output_bytes: int | None = None,
    ) -> ExecResult:
        """Run one command in it. See :meth:`woodshed.interfaces.Session.run`. ``timeout_s`` counts from its turn.

        Cancelled, it ends the command as a timeout does. Raises SandboxDied, UsageError for a command with a NUL or a
        closed session.
        """
        text = command.encode(errors="surrogateescape")
        if b"\0" in text:
            raise UsageError("a command holds no NUL", field="command", remedy="Write such bytes to a file.")
        if self._closed:
            raise UsageError("this session is closed", remedy="Open another one.")
        turn = _Turn(self, text, timeout_s, stream, output_bytes)
        self._last = task = self._commands.loop.create_task(turn.take(self._last))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            turn.give_up()
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    def shell(self) -> tuple[_Shell, bytes]:
        """The live shell, made where there is none, and what is to be said of that."""
        if self._closed:
            raise UsageError("this session is closed", remedy="Open another one.")
        if self._shell is not None and not self._shell.ended.done():
            return self._shell, b""
        if self._shell is not None:  # it ended between two commands
            self._lost(self._shell)
        said, self._anew = _STARTED_ANEW.format(self._cwd) if self._anew else "", False
        self._shell = _Shell(self._commands, self._cwd, self._env, self._user)
        return self._shell, said.encode(errors="surrogateescape")

    def _lost(self, shell: _Shell) -> None:
        shell.retire()
        self._shell, self._anew = None, True
        if shell.refused:  # its directory is gone, as a rule; it has said so
            self._cwd = self._commands.world.workdir

    def at(self, cwd: str) -> None:
        """Where its shell is now; a new one begins there."""
        if cwd.startswith("/"):
            self._cwd = cwd

    def gone(self, shell: _Shell, *, told: bool) -> None:
        """The shell has ended; with ``told`` the caller knows."""
        self._lost(shell)
        if told:
            self._anew = False

    async def close(self) -> None:
        """End the shell and what runs in it. Idempotent."""
        self._closed = True
        shell, self._shell = self._shell, None
        if shell is not None:
            with suppress(SandboxDied):
                await shell.end_all()
            shell.retire()


class _Turn:
    """One command's turn in a session."""

    def __init__(
        self, session: NativeSession, text: bytes, timeout_s: float | None, stream: Stream | None,
        output_bytes: int | None,
    ) -> None:
        self._session, self._text, self._timeout_s = session, text, timeout_s
        self._stream, self._output_bytes = stream, output_bytes
        self._commands = session._commands
        self._over: asyncio.Future[None] = self._commands.loop.create_future()

    def give_up(self) -> None:
        """Its time is over, or nobody wants it any more."""
        if not self._over.done():
            self._over.set_result(None)

    async def take(self, before: asyncio.Task[ExecResult] | None) -> ExecResult:
        """Run when the one ``before`` is over."""
        if before is not None and not before.done():
            await asyncio.wait([before])
        if self._over.done():
            raise asyncio.CancelledError
        limit = self._output_bytes or self._commands.world.limits.output_bytes
        collected = Collected(limit, self._stream, self._commands.spools)
        alarm: asyncio.TimerHandle | None = None
        try:
            shell, said = self._session.shell()
            started, reached = time.perf_counter(), self._commands.reached()
            if said:
                collected.err(said)
            reported = shell.begin(self._text, collected)
            if self._timeout_s is not None:
                alarm = self._commands.loop.call_later(max(0.0, self._timeout_s), self.give_up)
            await _first(reported, shell.ended, self._over)
            timed_out = not reported.done() and not shell.ended.done()
            told = timed_out and await self._stop(shell, reported, collected)
            end = self._end(shell, reported, told=told)
            if timed_out:
                end["exit"] = 128 + signal.SIGKILL
            return self._commands.result(end, collected, reached, started, timed_out=timed_out)
        finally:
            if alarm is not None:
                alarm.cancel()
            collected.close()

    async def _stop(self, shell: _Shell, reported: asyncio.Future[Report], collected: Collected) -> bool:
        """End the command; the shell, too, where it does not come back: then True, and stderr says so."""
        cwd = ""
        for _ in range(_INTERRUPTS):
            cwd = await shell.interrupt()
            await _first(reported, shell.ended, timeout_s=_INTERRUPT_EVERY_S)
            if reported.done() or shell.ended.done():
                return False
        self._session.at(cwd)
        collected.err(_ENDED)
        await shell.end()
        await _first(shell.ended)
        return True

    def _end(self, shell: _Shell, reported: asyncio.Future[Report], *, told: bool) -> wire.Message:
        if reported.done():
            self._session.at(reported.result().cwd)
            shell.settle()
            return {"exit": reported.result().status, "cpu_s": None, "hits": self._commands.link.take_hits(shell.id)}
        end, _ = shell.ended.result()  # raises SandboxDied
        shell.settle()
        self._session.gone(shell, told=told)
        return {**end}


async def _first(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Until one is done."""
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


class Sessions:
    """Opens shells that stay."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: int | None = None
    ) -> NativeSession:
        """A shell that stays, bash where there is one. Raises EnvironmentFault where it cannot run, SandboxDied."""
        session = NativeSession(self._commands, self._commands.world.path(cwd or "."), env, user)
        try:
            await session.open()
        except BaseException:
            await session.close()
            raise
        return session
