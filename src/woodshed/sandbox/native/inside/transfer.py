"""Transfers of a box: helpers, children of PID 1, that move whole trees through pipes or watch them.

A helper is a process of the box like any other: its limits hold it, kill_all ends it, and others inside may stop it. It
is no command, though: no program is loaded, so nothing inside can look into it or take its place.
"""
# ruff: noqa: PTH103, PTH112, PTH116, PTH119
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import errno
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping

from woodshed.sandbox.native.inside import files, frames, layering, tarring, watch, wire
from woodshed.sandbox.native.inside.beneath import Beneath
from woodshed.sandbox.native.inside.commands import UNMARKED, Commands

_REASON_BYTES = 16_000
"""Of a failure's reason, in a pipe that holds at least 65,536 (pipe(7))."""

Work = Callable[[wire.Message, list[int]], None]


class Transfers:
    """Helpers by operation. Each answers under the message's id, when it ends, with its exit code."""

    def __init__(
        self, channel: socket.socket, commands: Commands, more: Mapping[str, Work] | None = None
    ) -> None:
        """``more`` are helpers of whoever else serves with this module."""
        self.channel, self.commands = channel, commands
        self.operations: dict[str, wire.Operation] = {
            "unpack": self._start(_unpack), "pack": self._start(_pack), "tar": self._start(_tar),
            "untar": self._start(_untar), "watch": self._start(_watch), "place": self._start(_place),
            "drop": self._drop, "layer": self._start(layering.unpack), "layer_out": self._start(layering.pack),
            **{name: self._start(work) for name, work in (more or {}).items()},
        }

    def _start(self, work: Work) -> wire.Operation:
        def start(message: wire.Message, fds: list[int]) -> None:
            if message.get("small"):
                # The engine's word that a fork would cost more than the work. Nothing of it can wait: every file is
                # made anew (O_EXCL), so none is a pipe, and none is leased.
                wire.reply(self.channel, message, {"exit": _helped(work, message, fds), "cpu_s": 0.0})
                return
            # A helper belongs to no command: the end of one must not take it along.
            self.commands.marks.set(UNMARKED)
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    self._settle()
                    code = _helped(work, message, fds)
                finally:
                    os._exit(code)
            self.commands.started(pid, message["id"])

        return start

    def _settle(self) -> None:
        for group in self.commands.groups:
            os.write(group, b"0")
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (signal.SIGXFSZ, signal.SIGPIPE):  # errors are to be told, not to be died of
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        self.channel.close()

    def _drop(self, message: wire.Message, fds: list[int]) -> None:
        """End the helper ``target``, of which nobody wants anything any more. Its own end is the answer."""
        pid = self.commands.leaders.get(message["target"])
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


def _helped(work: Work, message: wire.Message, fds: list[int]) -> int:
    """Do ``work``; a failure's errno and reason go into the last of ``fds``."""
    try:
        work(message, fds)
    except Exception as error:
        if isinstance(error, BrokenPipeError):
            return 1  # nobody reads on: it was the engine that gave up
        if isinstance(error, (tarring.Refused, frames.Malformed)):
            number, text = frames.REFUSED, str(error)
        else:
            number = (error.errno if isinstance(error, OSError) else None) or errno.EINVAL
            text = getattr(error, "strerror", None) or str(error)
        os.write(fds[-1], json.dumps([number, text]).encode()[:_REASON_BYTES])
        return 1
    return 0


def _writer(fd: int) -> frames.Write:
    def write(data: bytes) -> None:
        done = os.write(fd, data)
        if done < len(data):
            view = memoryview(data)[done:]
            while view:
                view = view[os.write(fd, view):]

    return write


def _reader(fd: int) -> frames.Reader:
    return frames.Reader(lambda size: os.read(fd, size))


def _leave_out(path: str, why: str) -> None:
    """What is no file, directory or link does not travel."""


def _pack(message: wire.Message, fds: list[int]) -> None:
    """Write the tree ``path`` as frames into the first of ``fds``."""
    path = files.checked(message)
    frames.send(frames.walk(path, _leave_out, without=os.stat("/proc").st_dev), _writer(fds[0]))


def _tar(message: wire.Message, fds: list[int]) -> None:
    path = files.checked(message)
    name = os.path.basename(os.path.normpath(path)) or "."
    tarring.write(frames.walk(path, _leave_out, without=os.stat("/proc").st_dev), name, _writer(fds[0]))


def _unpack(message: wire.Message, fds: list[int]) -> None:
    """Place the tree that the first of ``fds`` has as frames at ``path``."""
    tree = _target(files.checked(message))
    try:
        stream = frames.Frames(_reader(fds[0]))
        while (frame := stream.next()) is not None:
            kind, mode, path, size, target = frame
            if kind == "d":
                tree.directory(path, mode)
            elif kind == "l":
                tree.link(path, target)
            else:
                tree.file(path, mode, size, stream.pieces(size))
        tree.finish()
    finally:
        tree.close()


def _untar(message: wire.Message, fds: list[int]) -> None:
    """Unpack the archive that the first of ``fds`` has below the directory ``path``, made where it is missing."""
    path = files.checked(message)
    existed = os.path.isdir(path)
    if not existed:
        os.makedirs(os.path.normpath(path), 0o755)
    tree = _target(path)
    try:
        tree.enter()
        tarring.read(_reader(fds[0]), tree)
        tree.finish()
    finally:
        tree.close()


def _target(path: str) -> Beneath:
    """A tree at ``path``, whose parents are made as needed; links in the way there are followed, inside."""
    path = path.rstrip("/")
    if not path:
        return Beneath(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), ".", replace=True)
    files.make_parents(path)
    above, _, name = path.rpartition("/")
    return Beneath(os.open(above or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), name, replace=True)


def _place(message: wire.Message, fds: list[int]) -> None:
    files.replace(files.checked(message), message["mode"], fds[0])


def _watch(message: wire.Message, fds: list[int]) -> None:
    watch.run(files.checked(message), fds[0])
