"""PID 1 of a box: answers the engine, reaps what ended; and when the engine is gone, ends.

It is confined like every command it starts. Its end is the kernel's end of every process of the box, so nothing here
may fail for what happens inside: an error is an answer, and a stopped child (one that asked to be traced) is killed.
"""
# ruff: noqa: PTH112
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
from collections.abc import Mapping
from typing import Any, NoReturn

from woodshed.sandbox.native.inside import confine, files, syscalls, wire
from woodshed.sandbox.native.inside.commands import EXIT_NOT_RUN, Commands
from woodshed.sandbox.native.inside.files import Files
from woodshed.sandbox.native.inside.hold import Hold
from woodshed.sandbox.native.inside.rebase import Rest
from woodshed.sandbox.native.inside.rules import Enforced
from woodshed.sandbox.native.inside.transfer import Transfers, Work

_BACKLOG = 64
"""Connections that wait until the engine takes them."""
_LEAST_FILES, _SOFT_FILES = 64, 1024
"""We live under the limit of open files ourselves; and old programs mind numbers that select(2) cannot take."""


def serve(plan: dict[str, Any], channel: socket.socket, groups: list[int], filter_program: bytes) -> NoReturn:
    """Answer ``channel`` until it closes. ``groups`` are descriptors of cgroup.procs that commands join, and we do not:

    a memory limit then never kills PID 1, and a pids limit never keeps the engine out.
    """
    held = Enforced(plan["rules"], plan["workdir"]) if plan.get("rules") else None
    settle(plan)
    confine.confine(filter_program)
    if plan.get("lenient"):
        syscalls.load_filter(confine.lenient_program(syscalls.MACHINE))
    if held is not None:
        held.seal()
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)  # our memory and descriptors are closed to the box
    os.setsid()
    wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    init = Init(channel, Commands(channel, groups), Files(channel))
    if held is not None and held.holds_root:
        init.operations["rest"] = init.busy
    wire.send(channel, {"ready": 1, "notes": held.notes if held is not None else []})
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    poller.register(wake, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd == wake:
                os.read(wake, 4096)
                init.commands.reap()
            else:
                message, fds = wire.receive(channel)
                if message is None:
                    os._exit(0)
                init.answer(message, fds)


def settle(plan: dict[str, Any]) -> None:
    """Streams that lead nowhere, the working directory, and the rlimits of everything inside."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    if not os.path.isdir(plan["workdir"]):
        files.make_parents(plan["workdir"] + "/")
    _lower(resource.RLIMIT_FSIZE, plan["file_bytes"])
    _lower(resource.RLIMIT_NPROC, plan["pids"] + 1)  # and ourselves
    _lower(resource.RLIMIT_NOFILE, max(_LEAST_FILES, plan["open_files"]), soft=_SOFT_FILES)


def _lower(kind: int, bound: int, *, soft: int | None = None) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = bound if hard == resource.RLIM_INFINITY else min(hard, bound)
    resource.setrlimit(kind, (bound if soft is None else min(soft, bound), bound))


class Init:
    """The operations of PID 1 by name; each part brings its own."""

    def __init__(
        self, channel: socket.socket, commands: Commands, files: Files, works: Mapping[str, Work] | None = None
    ) -> None:
        """``works`` are helpers besides those of transfer.py."""
        self.channel, self.commands, self.hold = channel, commands, Hold(channel)
        self.operations = {**commands.operations, **files.operations, **Rest(channel, commands).operations,
                           **self.hold.operations, **Transfers(channel, commands, works).operations, "thaw": self._thaw,
                           "listen": self._listen}

    def _thaw(self, message: wire.Message, fds: list[int]) -> None:
        for waited in self.hold.thawed():
            self.answer(*waited)
        wire.reply(self.channel, message, {"ok": 1})

    def _listen(self, message: wire.Message, fds: list[int]) -> None:
        """A port of our loopback, handed over: whoever connects to it in here reaches the engine, and nothing else."""
        end = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            end.bind(("127.0.0.1", message["port"]))
            end.listen(_BACKLOG)
            wire.reply(self.channel, message, {"ok": 1}, os.dup(end.fileno()))
        finally:
            end.close()

    def busy(self, message: wire.Message, fds: list[int]) -> None:
        """The root cannot be exchanged: a policy's mounts are of this one."""
        wire.reply(self.channel, message, {"busy": 1})

    def answer(self, message: wire.Message, fds: list[int]) -> None:
        """Do what ``message`` asks. Its descriptors are closed afterwards."""
        if self.hold.holding and self.hold.keeps(message, fds):
            return
        try:
            operation = self.operations.get(message["op"])
            if operation is None:
                raise OSError(errno.ENOSYS, f"unknown operation {message['op']}")
            operation(message, fds)
        except Exception as error:
            # Whatever a caller sends (a path of any length, half a surrogate pair) is answered, or the box would die.
            number = (error.errno if isinstance(error, OSError) else None) or errno.EINVAL
            reason = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"
            wire.reply(self.channel, message,
                       {"errno": number, "reason": reason, "exit": EXIT_NOT_RUN, "cpu_s": 0.0})
        finally:
            for fd in fds:
                os.close(fd)
