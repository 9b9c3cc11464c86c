"""Commands of a box, from the engine's side: run to the end, kept in the background, or on a terminal."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from woodshed.errors import SandboxDied, Unsupported
from woodshed.interfaces import ExecResult, Stream
from woodshed.sandbox.native.inside import wire
from woodshed.sandbox.native.link import Link, Reply, World, failed
from woodshed.sandbox.native.output import Drain, Kept, Pipe

_ATTACH_AFTER_S = 0.004
"""A command shorter than this is read in one go when it has ended, without the event loop watching its pipes."""
_LEAST_KEPT = 2


class NativeProcess:
    """A background command of a native sandbox."""

    def __init__(self, commands: Commands, ident: int, ended: asyncio.Future[Reply]) -> None:
        self.id, self._commands, self._ended = ident, commands, ended

    async def wait(self) -> int:
        """The exit code, once it ended. Raises SandboxDied."""
        message, _ = await asyncio.shield(self._ended)
        return int(message["exit"])

    async def kill(self) -> None:
        """End it and its descendants. Idempotent."""
        await self._commands.kill_tree(self.id)


class Terminal:
    """A command on a terminal of the box: ``fd`` is the master side, the caller's to read, write and close."""

    def __init__(self, process: NativeProcess, fd: int) -> None:
        self.process, self.fd = process, fd


class Commands:
    """Starts commands in a box and follows them. See :class:`woodshed.interfaces.Sandbox`."""

    def __init__(self, world: World, link: Link) -> None:
        self._world, self._link, self._loop = world, link, asyncio.get_running_loop()
        self._drain = Drain(self._loop)

    def close(self) -> None:
        """Follow none any more. Idempotent."""
        self._drain.close()

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: int = 0,
        timeout_s: float | None = None,
        stdin: bytes | None = None,
        stream: Stream | None = None,
        output_bytes: int | None = None,
    ) -> ExecResult:
        """Run to the end. See :meth:`woodshed.interfaces.Sandbox.exec`."""
        started = time.perf_counter()
        message = self._command(command, cwd, env, user)
        kills = self._oom_kills()
        limit = max(_LEAST_KEPT, output_bytes or self._world.limits.output_bytes)
        kept = Kept(limit), Kept(limit)
        pipes = Pipe(_taker(kept[0], "stdout", stream)), Pipe(_taker(kept[1], "stderr", stream))
        attach = self._loop.call_later(_ATTACH_AFTER_S, _attach, pipes, self._loop)
        alarm: asyncio.TimerHandle | None = None
        timed_out = False

        def expire() -> None:
            nonlocal timed_out
            timed_out = True
            with suppress(SandboxDied):
                self._link.end({"op": "kill", "target": message["id"]})

        try:
            ended = self._run(message, stdin, pipes)
            if timeout_s is not None:
                alarm = self._loop.call_later(max(0.0, timeout_s), expire)
            end, _ = await ended
            self._finish(pipes)
        except asyncio.CancelledError:
            with suppress(SandboxDied):
                self._link.end({"op": "kill", "target": message["id"]})
            raise
        finally:
            attach.cancel()
            if alarm is not None:
                alarm.cancel()
            for pipe in pipes:
                pipe.close(self._loop)
        return ExecResult(
            exit_code=end["exit"], stdout=kept[0].bytes(), stderr=kept[1].bytes(),
            truncated=kept[0].truncated or kept[1].truncated, timed_out=timed_out,
            oom_killed=end["exit"] != 0 and self._oom_kills() > kills,
            seconds=time.perf_counter() - started, cpu_s=end["cpu_s"],
        )

    def _run(
        self, message: wire.Message, stdin: bytes | None, pipes: tuple[Pipe, Pipe]
    ) -> asyncio.Future[Reply]:
        source = [] if stdin is None else [_stdin(stdin)]
        try:
            return self._link.request(message, [*source, pipes[0].inner, pipes[1].inner])
        finally:
            for fd in source:
                os.close(fd)
            for pipe in pipes:
                pipe.sent()

    def _finish(self, pipes: tuple[Pipe, Pipe]) -> None:
        for pipe in pipes:
            left = pipe.finish(self._loop)
            if left is not None:
                self._drain.add(left)

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: int = 0,
    ) -> NativeProcess:
        """Start in the background, its output discarded."""
        message = self._command(command, cwd, env, user)
        return NativeProcess(self, message["id"], self._link.request(message))

    async def pty(
        self,
        command: str | Sequence[str] = (),
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: int = 0,
    ) -> Terminal:
        """Start a command (the shell by default) on a terminal of its own, made inside the sandbox."""
        message = self._command(command or (self._world.shell, "-l"), cwd, {"TERM": "xterm", **(env or {})}, user)
        message["op"] = "pty"
        answer, fds = await self._link.request(message)
        if not fds:
            raise failed(answer, "no terminal")
        return Terminal(NativeProcess(self, message["id"], self._link.later(message["id"])), fds[0])

    async def kill_tree(self, ident: int) -> None:
        """End the command ``ident`` and all its descendants. Idempotent."""
        if not self._link.dead:
            await self._link.end({"op": "kill", "target": ident})

    async def kill_all(self) -> None:
        """End every process but the sandbox's own first. Raises SandboxDied."""
        await self._link.end({"op": "kill_all"})

    def _command(
        self, command: str | Sequence[str], cwd: str | None, env: Mapping[str, str] | None, user: int
    ) -> wire.Message:
        if user and not self._world.privileged:
            raise Unsupported("user: a native sandbox of an ordinary user has only its user 0")
        argv = [self._world.shell, "-c", command] if isinstance(command, str) else list(command)
        if not argv:
            raise ValueError("an empty command")
        return {
            "op": "exec", "id": self._link.next_id(), "argv": argv, "cwd": self._world.path(cwd or "."), "user": user,
            "env": {**self._world.env, **env} if env else self._world.env,
        }

    def _oom_kills(self) -> int:
        return self._world.groups.oom_kills() if self._world.groups else 0


def _taker(kept: Kept, name: Literal["stdout", "stderr"], stream: Stream | None) -> Callable[[bytes], None]:
    if stream is None:
        return kept.add

    def take(data: bytes) -> None:
        kept.add(data)
        stream(name, data)

    return take


def _attach(pipes: tuple[Pipe, Pipe], loop: asyncio.AbstractEventLoop) -> None:
    for pipe in pipes:
        pipe.attach(loop)


def _stdin(content: bytes) -> int:
    """A descriptor to read ``content`` from: a pipe where it fits into one, else a memory file."""
    outer, inner = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not content or os.write(inner, content) == len(content):
            os.set_blocking(outer, True)
            return outer
    except BlockingIOError:
        pass
    finally:
        os.close(inner)
    os.close(outer)
    memory = os.memfd_create("stdin", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(memory, view):]
    os.lseek(memory, 0, os.SEEK_SET)
    return memory
