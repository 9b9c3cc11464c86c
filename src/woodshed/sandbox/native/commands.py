"""Commands of a box, from the engine's side: run to the end, kept in the background, or on a terminal."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from woodshed.errors import EnvironmentFault, SandboxDied, Unsupported
from woodshed.interfaces import ExecResult, Stream
from woodshed.sandbox.native.cgroups import Groups
from woodshed.sandbox.native.collected import Collected
from woodshed.sandbox.native.inside import wire
from woodshed.sandbox.native.link import Link, Reply, World, failed
from woodshed.sandbox.native.output import Drain, Pipe, Take, Told
from woodshed.sandbox.native.process import Feed, NativeProcess
from woodshed.sandbox.native.spool import Spools
from woodshed.sandbox.native.terminal import NativeTerminal, check_size
from woodshed.sandbox.native.turns import turns

_ATTACH_AFTER_S = 0.004
"""A command shorter than this is read in one go when it has ended, without the event loop watching its pipes."""


class Held(Protocol):
    """Something with descriptors that go when the box does."""

    def drop(self) -> None:
        """Let go of them. Idempotent."""


class Commands:
    """Starts commands in a box and follows them. See :class:`woodshed.interfaces.Sandbox`."""

    def __init__(self, world: World, link: Link) -> None:
        self.world, self.link, self.loop = world, link, asyncio.get_running_loop()
        self.spools = Spools(world.folder / "spool", world.limits.spool_bytes, world.limits.disk_mb << 19)
        self._drain, self._turns = Drain(self.loop), turns(self.loop)
        self._held: set[Held] = set()

    def hold(self, held: Held) -> None:
        """Drop ``held`` when the box closes."""
        self._held.add(held)

    def forget(self, held: Held) -> None:
        """It was dropped, or will be by others."""
        self._held.discard(held)

    def close(self) -> None:
        """Follow none any more. Idempotent."""
        while self._held:
            self._held.pop().drop()
        self._drain.close()

    # -- run to the end ------------------------------------------------------------------------------------------------

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: int | None = None,
        timeout_s: float | None = None,
        stdin: bytes | None = None,
        stream: Stream | None = None,
        output_bytes: int | None = None,
    ) -> ExecResult:
        """Run to the end. See :meth:`woodshed.interfaces.Sandbox.exec`. ``timeout_s`` counts from its start."""
        message = self.message(command, cwd, env, user)
        if not self._turns.take():
            await self._turns.wait()
        try:
            collected = Collected(output_bytes or self.world.limits.output_bytes, stream, self.spools)
            try:
                return await self._exec(message, timeout_s, stdin, collected)
            finally:
                collected.close()
        finally:
            self._turns.give_back()

    async def _exec(
        self, message: wire.Message, timeout_s: float | None, stdin: bytes | None, collected: Collected
    ) -> ExecResult:
        try:
            pipes, source = _opened(collected, stdin)
        except EnvironmentFault:
            pipes, source = await self._opened_later(collected, stdin)
        started = time.perf_counter()
        message["id"] = ident = self.link.next_id()
        before = self.reached()
        attach = self.loop.call_later(_ATTACH_AFTER_S, _attach, pipes, self.loop)
        alarm: asyncio.TimerHandle | None = None
        timed_out = False

        def expire() -> None:
            nonlocal timed_out
            timed_out = True
            self.kill_soon(ident)

        try:
            ended = self._run(message, source, pipes)
            if timeout_s is not None:
                alarm = self.loop.call_later(max(0.0, timeout_s), expire)
            end, _ = await ended
            self.finish(pipes)
        except asyncio.CancelledError:
            self.kill_soon(ident)
            raise
        finally:
            attach.cancel()
            if alarm is not None:
                alarm.cancel()
            for pipe in pipes:
                pipe.close(self.loop)
        return self.result(end, collected, before, started, timed_out=timed_out)

    async def _opened_later(self, collected: Collected, stdin: bytes | None) -> tuple[tuple[Pipe, Pipe], list[int]]:
        while await self._turns.fell_short():
            with suppress(EnvironmentFault):
                return _opened(collected, stdin)
        return _opened(collected, stdin)

    def _run(
        self, message: wire.Message, source: Sequence[int], pipes: Sequence[Pipe]
    ) -> asyncio.Future[Reply]:
        try:
            return self.link.request(message, [*source, *(pipe.inner for pipe in pipes)])
        finally:
            for fd in source:
                os.close(fd)
            for pipe in pipes:
                pipe.sent()

    def finish(self, pipes: Sequence[Pipe]) -> None:
        """The command ended: take what it left in its pipes, and let its descendants write on into nothing."""
        for pipe in pipes:
            left = pipe.finish(self.loop)
            if left is not None:
                self._drain.add(left)

    def reached(self) -> tuple[int, int]:
        """How often the box has met its limits so far: processes killed for want of memory, and refused."""
        return self.world.groups.oom_kills(), self.world.groups.pids_refused()

    def result(
        self, end: wire.Message, collected: Collected, before: tuple[int, int], started: float, *, timed_out: bool
    ) -> ExecResult:
        """What there is to say of a command that has ended. Raises what the caller's stream raised."""
        collected.raise_error()
        truncated, groups = collected.truncated, self.world.groups
        cut = truncated and collected.limit >= self.world.limits.output_bytes
        hits = _hits(end, groups, before, cut=cut)
        return ExecResult(
            exit_code=end["exit"], stdout=collected.stdout.bytes(), stderr=collected.stderr.bytes(),
            truncated=truncated, timed_out=timed_out,
            oom_killed=end["exit"] != 0 and groups.holds("memory") and "memory_mb" in hits,
            seconds=time.perf_counter() - started, cpu_s=end["cpu_s"], limits_hit=hits, spool=collected.spool,
        )

    # -- in the background ---------------------------------------------------------------------------------------------

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: int | None = None,
        stdin: bool = False,
        stream: Stream | None = None,
    ) -> NativeProcess:
        """Start in the background. See :meth:`woodshed.interfaces.Sandbox.start`.

        A ``stream`` that raises is told nothing more; the loop's exception handler is told what it raised.
        """
        message = self.message(command, cwd, env, user)
        pipes: tuple[Pipe, ...] = ()
        told: Told | None = None
        if stream is not None:
            told = Told(stream)
            pipes = both(told.taker("stdout"), told.taker("stderr"))
        following = _Following(self, pipes, told)
        try:
            feed, inner = _feed(self.loop) if stdin else (None, -1)
            following.feed = feed
        except BaseException:
            following.drop()
            raise
        return self._follow(message, following, inner)

    def _follow(self, message: wire.Message, following: _Following, inner: int) -> NativeProcess:
        fds = [inner] if inner >= 0 else []
        if following.pipes:
            fds += [pipe.inner for pipe in following.pipes]
        if inner >= 0:
            message["at"] = list(range(len(fds)))
        message["id"] = self.link.next_id()
        try:
            ended = self.link.request(message, fds)
        except BaseException:
            following.drop()
            raise
        finally:
            if inner >= 0:
                os.close(inner)
            for pipe in following.pipes:
                if pipe.inner >= 0:
                    pipe.sent()
        for pipe in following.pipes:
            pipe.attach(self.loop)
        if fds:
            self.hold(following)
            ended.add_done_callback(following.ended)
        return NativeProcess(self.link, message["id"], ended, self.kill_tree, following.feed)

    async def pty(
        self,
        command: str | Sequence[str] = (),
        *,
        rows: int = 24,
        columns: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: int | None = None,
    ) -> NativeTerminal:
        """Start a command (a login shell by default) on a terminal of its own, made inside the sandbox.

        Raises OSError where the box has no terminal left.
        """
        check_size(rows, columns)
        argv = command or (self.world.shell, "-l")
        message = self.message(argv, cwd, {"TERM": "xterm", **(env or {})}, user)
        message |= {"op": "pty", "rows": rows, "columns": columns, "id": self.link.next_id()}
        asked = self.link.request(message)
        try:
            answer, fds = await asked
        except asyncio.CancelledError:
            if asked.done() and not asked.cancelled() and not asked.exception():
                for fd in asked.result()[1]:
                    os.close(fd)
            self.kill_soon(message["id"])
            raise
        if "started" not in answer:
            raise failed(answer, "no terminal")
        if not fds:
            self.kill_soon(message["id"])
            raise _no_more_files()
        process = NativeProcess(self.link, message["id"], self.link.later(message["id"]), self.kill_tree)
        try:
            terminal = NativeTerminal(process, fds[0], self.loop, self.forget)
        except OSError as error:
            os.close(fds[0])
            self.kill_soon(message["id"])
            raise _no_more_files() from error
        self.hold(terminal)
        return terminal

    # -- the end of commands -------------------------------------------------------------------------------------------

    def kill_soon(self, ident: int) -> None:
        """Ask for the end of the command ``ident`` and of its descendants, and do not wait for it."""
        with suppress(SandboxDied):
            self.link.end({"op": "kill", "target": ident})

    async def kill_tree(self, ident: int, marks: int = 0) -> None:
        """End the command ``ident`` and all its descendants, also those of ``marks`` ids more. Idempotent."""
        if not self.link.dead:
            with suppress(SandboxDied):
                await self.link.end({"op": "kill", "target": ident, "marks": marks})

    async def kill_all(self) -> None:
        """End every process but the sandbox's own first. Raises SandboxDied."""
        await self.link.end({"op": "kill_all"})

    def message(
        self, command: str | Sequence[str], cwd: str | None, env: Mapping[str, str] | None, user: int | None
    ) -> wire.Message:
        """What starts ``command``, but for its id. ``user`` None: as the image says. Raises Unsupported."""
        account = self.world.account if user is None else None
        if user and not self.world.privileged:
            raise Unsupported("users: a native sandbox of an ordinary user has only its user 0")
        argv = [self.world.shell, "-c", command] if isinstance(command, str) else list(command)
        if not argv:
            raise ValueError("an empty command")
        message = wire.Message(op="exec", argv=argv, cwd=self.world.path(cwd or "."), user=user or 0,
                               env={**self.world.env, **env} if env else self.world.env)
        if account is not None:
            message |= {"user": account.uid, "group": account.gid, "groups": account.groups,
                        "env": {**self.world.env, **account.env, **(env or {})}}
        return message


class _Following:
    """What is held for a background command while it runs."""

    def __init__(self, commands: Commands, pipes: Sequence[Pipe], told: Told | None) -> None:
        self._commands, self.pipes, self._told = commands, pipes, told
        self.feed: Feed | None = None

    def ended(self, ended: asyncio.Future[Reply]) -> None:
        """Its end is known: take the rest of its output."""
        self._commands.forget(self)
        if not ended.cancelled() and not ended.exception():
            self._commands.finish(self.pipes)
        self.drop()
        if self._told is not None and self._told.error is not None:
            self._commands.loop.call_exception_handler(
                {"message": "the stream of a background command raised", "exception": self._told.error})

    def drop(self) -> None:
        """Let go of its descriptors. Idempotent."""
        if self.feed is not None:
            self.feed.close()
        for pipe in self.pipes:
            pipe.close(self._commands.loop)


def _hits(end: wire.Message, groups: Groups, before: tuple[int, int], *, cut: bool) -> tuple[str, ...]:
    """The limits reached since ``before`` (kills, refusals): told with the end, by cgroups, or by the output kept."""
    hits = list(end.get("hits", ()))
    hits += ["memory_mb"] if groups.oom_kills() > before[0] else []
    hits += ["pids"] if groups.pids_refused() > before[1] else []
    hits += ["output_bytes"] if cut else []
    return tuple(dict.fromkeys(hits))


def _opened(collected: Collected, stdin: bytes | None) -> tuple[tuple[Pipe, Pipe], list[int]]:
    """The pipes of a command, and what it reads from. Raises EnvironmentFault like ``both``, with nothing left open."""
    try:
        source = [] if stdin is None else [_stdin(stdin)]
    except OSError as error:
        raise _no_more_files() from error
    try:
        return both(collected.out, collected.err), source
    except EnvironmentFault:
        for fd in source:
            os.close(fd)
        raise


def both(out: Take, err: Take) -> tuple[Pipe, Pipe]:
    """Pipes for both streams of a command. Raises EnvironmentFault where this process may open no more files."""
    try:
        first = Pipe(out)
    except OSError as error:
        raise _no_more_files() from error
    try:
        return first, Pipe(err)
    except OSError as error:
        os.close(first.fd)
        os.close(first.inner)
        raise _no_more_files() from error


def _no_more_files() -> EnvironmentFault:
    return EnvironmentFault("this process may open no more files (ulimit -n)")


def _feed(loop: asyncio.AbstractEventLoop) -> tuple[Feed, int]:
    """What writes to a pipe, and the end to read from: a command expects to block there."""
    try:
        inner, outer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _no_more_files() from error
    os.set_blocking(inner, True)
    return Feed(outer, loop), inner


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
