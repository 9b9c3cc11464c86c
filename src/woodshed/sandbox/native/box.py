"""A live sandbox of the native engine: what the engine's side knows and does; the other side is its PID 1."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import posixpath
import select
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from woodshed.errors import SandboxDied, Unsupported
from woodshed.interfaces import BlobSink, ExecResult, FileInfo, Stream
from woodshed.model import ChangeSet, Limits
from woodshed.sandbox.native import capture, trees, upload
from woodshed.sandbox.native.cgroups import Groups
from woodshed.sandbox.native.channel import Channel
from woodshed.sandbox.native.inside import wire
from woodshed.sandbox.native.output import Drain, Kept, Pipe

_ATTACH_AFTER_S = 0.004
"""A command shorter than this is read in one go when it has ended, without the event loop watching its pipes."""
_INLINE_BYTES = 1 << 20
"""Larger writes go to a thread."""
_LEAST_KEPT = 2

Reply = tuple[wire.Message, list[int]]


@dataclass(frozen=True, slots=True)
class World:
    """What a box was made of and may do; the same for its whole life."""

    id: str
    image_digest: str
    folder: Path
    lowers: tuple[Path, ...]
    shell: str
    env: Mapping[str, str]
    workdir: str
    limits: Limits
    groups: Groups | None
    privileged: bool


class NativeProcess:
    """A background command of a native sandbox."""

    def __init__(self, box: NativeSandbox, ident: int, ended: asyncio.Future[Reply]) -> None:
        self.id, self._box, self._ended = ident, box, ended

    async def wait(self) -> int:
        """The exit code, once it ended. Raises SandboxDied."""
        message, _ = await asyncio.shield(self._ended)
        return int(message["exit"])

    async def kill(self) -> None:
        """End it and its descendants. Idempotent."""
        await self._box.kill_tree(self.id)


class Terminal:
    """A command on a terminal of the box: ``fd`` is the master side, the caller's to read, write and close."""

    def __init__(self, process: NativeProcess, fd: int) -> None:
        self.process, self.fd = process, fd


class NativeSandbox:
    """A sandbox of the native engine. See :class:`woodshed.interfaces.Sandbox`."""

    def __init__(self, world: World, end: socket.socket, gone: Callable[[], Awaitable[None]]) -> None:
        """``end`` is our end of PID 1's channel; ``gone`` gives back what the box took of the host."""
        self.id, self.image_digest, self.world = world.id, world.image_digest, world
        self._gone, self._loop = gone, asyncio.get_running_loop()
        self._drain = Drain(self._loop)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._last_id = 0
        self._reason = "its first process ended"
        self._closing: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._born: asyncio.Future[None] = self._loop.create_future()
        self._dead = False
        self.pid, self.pidfd = -1, -1
        self._channel = Channel(end, self.on_message, self.on_end)

    # -- the life of the box -------------------------------------------------------------------------------------------

    async def opened(self) -> None:
        """Wait until PID 1 serves. Raises SandboxDied with its reason where it never will."""
        await self._ready

    def on_message(self, message: wire.Message, fds: list[int]) -> None:
        """Take a message of the fork server or of PID 1."""
        waiting = self._waiting.pop(message.get("id", 0), None)
        if waiting is not None and not waiting.done():
            if "started" in message:  # a terminal: its exit comes later under the same id
                self._waiting[message["id"]] = self._loop.create_future()
            waiting.set_result((message, fds))
            return
        if "pid" in message and fds and self.pidfd < 0:
            self.pid, self.pidfd = message["pid"], fds.pop(0)
            _resolve(self._born)
        elif "pid" in message:
            # The kernel drops descriptors where we have no room for them. PID 1 sees the end of ours and ends.
            self._reason = "this process may open no more files (ulimit -n)"
            self._channel.finish()
            self._fail_opening()
        elif "error" in message:
            self._reason = str(message["error"])
        elif "ready" in message:
            _resolve(self._ready)
        for fd in fds:
            os.close(fd)

    def on_end(self) -> None:
        """PID 1 is gone, and with it everything inside."""
        self._dead = True
        _resolve(self._born)
        fault = self._fail_opening()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(fault)
                waiting.exception()  # retrieved: a background process nobody waits for is no complaint
        self._waiting.clear()

    def _fail_opening(self) -> SandboxDied:
        fault = SandboxDied(f"sandbox {self.id}: {self._reason}")
        if not self._ready.done():
            self._ready.set_exception(fault)
            self._ready.exception()  # retrieved: a box closed before it was ready is no complaint
        return fault

    async def close(self) -> None:
        """Leave nothing: no process, mount, cgroup, directory. Idempotent; never raises for a dead sandbox."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._reason = "it was closed"
        self._drain.close()
        if not self._born.done():
            await self._born  # closed while it is being made: its first process must be known to be ended
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self._channel.close()
        self.on_end()
        await self._ended()
        await self._gone()

    async def _ended(self) -> None:
        """PID 1 has ended: the kernel says so only when every process of its namespace is gone."""
        if self.pidfd < 0:
            return
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        if not poll.poll(0):
            gone: asyncio.Future[None] = self._loop.create_future()
            self._loop.add_reader(self.pidfd, _resolve, gone)
            try:
                await gone
            finally:
                self._loop.remove_reader(self.pidfd)
        os.close(self.pidfd)
        self.pidfd = -1

    # -- commands ------------------------------------------------------------------------------------------------------

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
        limit = max(_LEAST_KEPT, output_bytes or self.world.limits.output_bytes)
        kept = Kept(limit), Kept(limit)
        pipes = Pipe(_taker(kept[0], "stdout", stream)), Pipe(_taker(kept[1], "stderr", stream))
        attach = self._loop.call_later(_ATTACH_AFTER_S, _attach, pipes, self._loop)
        alarm: asyncio.TimerHandle | None = None
        timed_out = False

        def expire() -> None:
            nonlocal timed_out
            timed_out = True
            self._send({"op": "kill", "target": message["id"]})

        try:
            ended = self._run(message, stdin, pipes)
            if timeout_s is not None:
                alarm = self._loop.call_later(max(0.0, timeout_s), expire)
            end, _ = await ended
            self._finish(pipes)
        except asyncio.CancelledError:
            self._send({"op": "kill", "target": message["id"]})
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
            return self._request(message, [*source, pipes[0].inner, pipes[1].inner])
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
        return NativeProcess(self, message["id"], self._request(message))

    async def pty(
        self,
        command: str | Sequence[str] = (),
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: int = 0,
    ) -> Terminal:
        """Start a command (the shell by default) on a terminal of its own, made inside the sandbox."""
        message = self._command(command or (self.world.shell, "-l"), cwd, {"TERM": "xterm", **(env or {})}, user)
        message["op"] = "pty"
        answer, fds = await self._request(message)
        if not fds:
            raise OSError(answer.get("errno", errno.EIO), answer.get("reason", "no terminal could be made"))
        return Terminal(NativeProcess(self, message["id"], self._waiting[message["id"]]), fds[0])

    async def kill_tree(self, ident: int) -> None:
        """End the command ``ident`` and all its descendants. Idempotent."""
        if not self._dead:
            await self._request({"op": "kill", "target": ident})

    async def kill_all(self) -> None:
        """End every process but the sandbox's own first. Raises SandboxDied."""
        await self._request({"op": "kill_all"})

    def _command(
        self, command: str | Sequence[str], cwd: str | None, env: Mapping[str, str] | None, user: int
    ) -> wire.Message:
        if user and not self.world.privileged:
            raise Unsupported("user: a native sandbox of an ordinary user has only its user 0")
        argv = [self.world.shell, "-c", command] if isinstance(command, str) else list(command)
        if not argv:
            raise ValueError("an empty command")
        return {
            "op": "exec", "id": self._next_id(), "argv": argv, "cwd": self._path(cwd or "."), "user": user,
            "env": {**self.world.env, **env} if env else self.world.env,
        }

    def _oom_kills(self) -> int:
        return self.world.groups.oom_kills() if self.world.groups else 0

    # -- files ---------------------------------------------------------------------------------------------------------

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """Content of a regular file. Raises FileNotFoundError, IsADirectoryError, PermissionError, OSError (EFBIG)."""
        _, fds = await self._ask({"op": "read", "path": self._path(path)}, path)
        with os.fdopen(fds[0], "rb", buffering=0) as file:
            parts, size = [], 0
            while data := file.read(min(1 << 20, max_bytes + 1 - size)):
                parts.append(data)
                size += len(data)
                if size > max_bytes:
                    raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", path)
        return b"".join(parts)

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Replace a file's content, parents made as needed. Refuses devices and FIFOs (OSError)."""
        _, fds = await self._ask({"op": "write", "path": self._path(path), "mode": mode & 0o777}, path)
        if len(content) > _INLINE_BYTES:
            await asyncio.to_thread(_write, fds[0], content)
        else:
            _write(fds[0], content)

    async def list(self, path: str) -> list[FileInfo]:
        """Entries of a directory, by name. Raises FileNotFoundError, NotADirectoryError."""
        message, _ = await self._ask({"op": "list", "path": self._path(path)}, path)
        return [FileInfo(name, kind, size, mode) for name, kind, size, mode in sorted(message["entries"])]

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or folder to ``target``. Raises UsageError for the source, OSError for the target."""
        pack = upload.pack
        contents, index_bytes = pack(source) if trees.small(source) else await asyncio.to_thread(pack, source)
        reason, inner = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            message = {"op": "extract", "target": self._path(target), "index_bytes": index_bytes}
            try:
                ended = self._request(message, [contents, inner])
            finally:
                os.close(inner)
            end, _ = await ended
            if end["exit"]:
                raise _failure(os.read(reason, 1 << 16), target)
        finally:
            os.close(contents)
            os.close(reason)

    async def changes(self, sink: BlobSink, *, roots: Sequence[str] = ("/",)) -> ChangeSet:
        """What differs from the start below ``roots``. Call it after kill_all. Bounded by the policy's limits."""
        if self._dead:
            raise SandboxDied(f"sandbox {self.id}: {self._reason}")
        places = [self._path(root) for root in roots] or ["/"]
        upper = self.world.folder / "u"
        asked = (upper, self.world.lowers, places, self.world.limits, sink)
        return capture.capture(*asked) if trees.small(upper) else await asyncio.to_thread(capture.capture, *asked)

    def _path(self, path: str) -> str:
        return posixpath.join(self.world.workdir, path)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _send(self, message: wire.Message, fds: Sequence[int] = ()) -> None:
        message.setdefault("id", self._next_id())
        self._channel.send(message, fds)

    def _request(self, message: wire.Message, fds: Sequence[int] = ()) -> asyncio.Future[Reply]:
        if self._dead:
            raise SandboxDied(f"sandbox {self.id}: {self._reason}")
        message.setdefault("id", 0)
        message["id"] = message["id"] or self._next_id()
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting[message["id"]] = future
        self._channel.send(message, fds)
        return future

    async def _ask(self, message: dict[str, Any], path: str) -> Reply:
        asked = self._request(message)
        try:
            answer, fds = await asked
        except asyncio.CancelledError:
            if asked.done() and not asked.cancelled() and not asked.exception():
                for fd in asked.result()[1]:
                    os.close(fd)  # answered, but nobody is there to take it
            raise
        if "errno" in answer:
            raise OSError(answer["errno"], answer["reason"], path)
        if "ok" in answer and not fds:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return answer, fds


def _taker(kept: Kept, name: Literal["stdout", "stderr"], stream: Stream | None) -> Callable[[bytes], None]:
    if stream is None:
        return kept.add

    def take(data: bytes) -> None:
        kept.add(data)
        stream(name, data)

    return take


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


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


def _write(fd: int, content: bytes) -> None:
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view):]
    finally:
        os.close(fd)


def _failure(reason: bytes, target: str) -> OSError:
    if not reason:
        return OSError(errno.EIO, "the upload was killed", target)
    code, text = json.loads(reason)
    return OSError(code, text, target)
