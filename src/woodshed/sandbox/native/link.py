"""The engine's side of one box's channel: questions, answers, and how its first process came and went."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed.errors import SandboxDied
from woodshed.model import Limits, SandboxPolicy
from woodshed.sandbox.native.account import Account
from woodshed.sandbox.native.cgroups import Groups
from woodshed.sandbox.native.channel import Channel
from woodshed.sandbox.native.inside import wire
from woodshed.sandbox.native.layers import Stack

Reply = tuple[wire.Message, list[int]]

_STARTS = frozenset({"exec", "pty", "unpack", "untar", "place", "layer"})
_PATIENCE_S = 3.0
"""How long PID 1 may be silent when it is to end processes; its own limit for a tree is two thirds of it."""


@dataclass(frozen=True, slots=True)
class Acting:
    """Another user than root: numbers, supplementary groups, and the variables that go with it."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    env: Mapping[str, str]


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
    policy: SandboxPolicy
    groups: Groups
    privileged: bool
    account: Acting | None = None
    """Who commands are unless they say; None for root."""
    stack: Stack = field(default_factory=Stack)
    """What lies between ``lowers``, the image, and the box's own directory."""

    @property
    def limits(self) -> Limits:
        """Of the policy."""
        return self.policy.limits

    def path(self, path: str) -> str:
        """Absolute, relative ones from the working directory."""
        return posixpath.join(self.workdir, path)


class Link:
    """Asks PID 1 of a box and hands its answers out; knows whether it lives."""

    def __init__(self, name: str, end: socket.socket) -> None:
        """``end`` is our end of PID 1's channel."""
        self.name, self.reason = name, "its first process ended"
        self.dead = False
        self.account = Account()
        """What the box uses, as PID 1 tells it by the way."""
        self.notes: tuple[str, ...] = ()
        """What PID 1 says of its policy: see :attr:`NativeSandbox.notes`."""
        self.pid, self.pidfd = -1, -1
        self.running: dict[int, list[str]] = {}
        """Commands that have not ended, by id, with the limits reached meanwhile: their answers' ``hits``."""
        self.shells: dict[int, range] = {}
        """Of those that are a session's shell: the marks of what they run."""
        self.busy: Callable[[], None] = _nothing
        """Called when one starts."""
        self.doors: Callable[[list[int]], None] = _close_all
        """Takes the descriptors of the sockets at which what the box sends arrives: see inside/networks.py."""
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._last_id = 0
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._born: asyncio.Future[None] = self._loop.create_future()
        self._channel = Channel(end, self._on_message, self._on_end)

    # -- asking --------------------------------------------------------------------------------------------------------

    def next_id(self, more: int = 0) -> int:
        """A number no other message of this box has, nor ``more`` after it."""
        ident = self._last_id + 1
        self._last_id = ident + more
        return ident

    def send(self, message: wire.Message, fds: Sequence[int] = ()) -> None:
        """Say something whose answer nobody waits for."""
        message.setdefault("id", self.next_id())
        self._channel.send(message, fds)

    def request(self, message: wire.Message, fds: Sequence[int] = ()) -> asyncio.Future[Reply]:
        """Ask; the future is the answer with its descriptors, now the caller's. Raises SandboxDied."""
        if self.dead:
            raise self.death()
        if "id" not in message:
            message["id"] = self.next_id()
        if message["op"] in _STARTS:
            self.running[message["id"]] = []
            if "marks" in message:
                self.shells[message["id"]] = range(message["id"] + 1, message["id"] + message["marks"] + 1)
            self.busy()
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting[message["id"]] = future
        self._channel.send(message, fds)
        return future

    def end(self, message: wire.Message) -> asyncio.Future[Reply]:
        """Ask for the end of processes (``kill``, ``kill_all``). Raises SandboxDied.

        A child that others stop (SIGSTOP) or hold up (a lease) before it has become its program holds up PID 1, which
        shares its memory until then. So where PID 1 is silent and waits for a child, its children are killed from here.
        """
        future = self.request(message)
        self._loop.call_later(_PATIENCE_S, self._free, future)
        return future

    def _free(self, asked: asyncio.Future[Reply]) -> None:
        if asked.done() or self.dead:
            return
        for child in children(self.pid) if _held_up(self.pid) else ():
            with suppress(OSError):
                pidfd = os.pidfd_open(child)
                try:
                    if child in children(self.pid):  # and so it is what we hold, not a later one of its number
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)
        self._loop.call_later(_PATIENCE_S, self._free, asked)

    def later(self, ident: int) -> asyncio.Future[Reply]:
        """The second answer to a message that was answered ``started``: how it ended."""
        return self._waiting[ident]

    async def ask(self, message: wire.Message, path: str, fds: Sequence[int] = ()) -> Reply:
        """Ask about ``path`` and wait. Raises OSError as PID 1 met it, SandboxDied."""
        asked = self.request(message, fds)
        try:
            answer, given = await asked
        except asyncio.CancelledError:
            if asked.done() and not asked.cancelled() and not asked.exception():
                for fd in asked.result()[1]:
                    os.close(fd)  # answered, but nobody is there to take it
            raise
        if "errno" in answer:
            raise OSError(answer["errno"], answer["reason"], path)
        if answer.get("fds", 0) > len(given):
            for fd in given:
                os.close(fd)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return answer, given

    def death(self) -> SandboxDied:
        """What is raised for a box that is gone."""
        return SandboxDied(f"sandbox {self.name}: {self.reason}")

    # -- the life of PID 1 ---------------------------------------------------------------------------------------------

    def born(self) -> None:
        """Its first process is there, but none that we could know or signal: the end of its channel is its end."""
        resolve(self._born)

    async def opened(self) -> None:
        """Wait until PID 1 serves. Raises SandboxDied with its reason where it never will."""
        await self._ready

    def _on_message(self, message: wire.Message, fds: list[int]) -> None:
        """Take a message of the fork server or of PID 1."""
        if "cpu_s" in message:
            self.account.heard(message)
        waiting = self._waiting.pop(message.get("id", 0), None)
        if "started" not in message and (hits := self.running.pop(message.get("id", 0), None)):
            message["hits"] = [*message.get("hits", ()), *hits]
        if waiting is not None and not waiting.done():
            if "started" in message:  # a terminal, say: its exit comes later under the same id
                self._waiting[message["id"]] = self._loop.create_future()
            waiting.set_result((message, fds))
            return
        if "pid" in message and len(fds) > message["doors"] and self.pidfd < 0:
            self.pid, self.pidfd = message["pid"], fds.pop(0)
            resolve(self._born)
            if fds:
                self.doors(fds)
                return
        elif "pid" in message:
            # The kernel drops descriptors where we have no room for them. PID 1 sees the end of ours and ends.
            self.reason = "this process may open no more files (ulimit -n)"
            self._channel.finish()
            self._fail_opening()
        elif "error" in message:
            self.reason = str(message["error"])
        elif "ready" in message:
            self.notes = tuple(message.get("notes", ()))
            resolve(self._ready)
        for fd in fds:
            os.close(fd)

    def _on_end(self) -> None:
        """PID 1 is gone, and with it everything inside."""
        self.dead = True
        resolve(self._born)
        fault = self._fail_opening()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(fault)
                waiting.exception()  # retrieved: a background process nobody waits for is no complaint
        self._waiting.clear()
        self.running.clear()

    def _fail_opening(self) -> SandboxDied:
        fault = self.death()
        if not self._ready.done():
            self._ready.set_exception(fault)
            self._ready.exception()  # retrieved: a box closed before it was ready is no complaint
        return fault

    def take_hits(self, ident: int) -> list[str]:
        """The limits reached so far while the command ``ident`` runs, which are not told again with its end."""
        told = self.running.get(ident, [])
        hits = list(told)
        told.clear()
        return hits

    def doom(self, reason: str) -> None:
        """End PID 1; whoever asks then is told ``reason``."""
        if not self.dead:
            self.reason = reason
            if self.pidfd >= 0:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            elif self._born.done():
                self._channel.finish()

    async def close(self) -> None:
        """End PID 1 and wait until the kernel has ended everything in its namespace."""
        self.reason = "it was closed"
        if not self._born.done():
            await self._born  # closed while it is being made: its first process must be known to be ended
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self._channel.close()
        self._on_end()
        await self._ended()

    async def _ended(self) -> None:
        """PID 1 has ended: the kernel says so only when every process of its namespace is gone."""
        if self.pidfd < 0:
            return
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        if not poll.poll(0):
            gone: asyncio.Future[None] = self._loop.create_future()
            self._loop.add_reader(self.pidfd, resolve, gone)
            try:
                await gone
            finally:
                self._loop.remove_reader(self.pidfd)
        os.close(self.pidfd)
        self.pidfd = -1


def _nothing() -> None:
    pass


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _held_up(pid: int) -> bool:
    """Whether a process waits for what no signal but a deadly one interrupts (proc(5), state D), as vfork(2) does.

    One that is merely slow, on a host that has much to do, is let alone.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"D"
    except (OSError, IndexError):
        return False


def children(pid: int) -> list[int]:
    """Of a single-threaded process: proc(5), ``children``. None where the kernel does not tell."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def resolve(future: asyncio.Future[None]) -> None:
    """Settle ``future`` unless it is."""
    if not future.done():
        future.set_result(None)


def failed(answer: Mapping[str, Any], path: str) -> OSError:
    """The error that an answer without its descriptor names."""
    return OSError(answer.get("errno", errno.EIO), answer.get("reason", "refused"), path)
