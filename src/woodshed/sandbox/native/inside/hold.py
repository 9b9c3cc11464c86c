"""Standing still: everything in the box stops where it is, and goes on when told; what is to start waits until then.

Where the engine has a frozen cgroup, every process is moved into it, which stops it without its noticing. Elsewhere
each gets SIGSTOP. Either way kill -9 still works on what stands. PID 1 itself goes on answering.
"""
# ruff: noqa: PTH123, PTH208, SIM105
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import os
import resource
import signal
import socket
import time

from woodshed.sandbox.native.inside import wire

_STOP_FOR_S = 1.0
_BLOCK = 512
"""Bytes of one ru_inblock and ru_oublock: getrusage(2)."""
_KILLED = 128 + signal.SIGKILL
_STARTS = frozenset({"exec", "pty", "unpack", "pack", "tar", "untar", "watch", "place"})


class Hold:
    """Whether the box stands still, and what waits for its going on."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.holding = False
        self.waiting: list[tuple[wire.Message, list[int]]] = []
        self.stopped: list[int] = []  # those we stopped, as far as they were not stopped before
        self.operations: dict[str, wire.Operation] = {
            "freeze": self._freeze, "pause": self._pause, "resume": self._resume, "usage": self._usage,
        }

    def keeps(self, message: wire.Message, fds: list[int]) -> bool:
        """Take ``message`` and its descriptors for later, where it would start something in a box that stands still.

        One that is killed while it waits never starts.
        """
        operation = message["op"]
        if operation in _STARTS:
            self.waiting.append((message, fds))
            return True
        if operation in ("kill", "kill_all", "drop"):
            for waiting in list(self.waiting):
                if operation == "kill_all" or waiting[0]["id"] == message["target"]:
                    self.waiting.remove(waiting)
                    _close(waiting[1])
                    wire.reply(self.channel, waiting[0], {"exit": _KILLED, "cpu_s": 0.0})
        return False

    def thawed(self) -> list[tuple[wire.Message, list[int]]]:
        """Nothing is held any more; what waited, for the caller to start."""
        self.holding, waited, self.waiting = False, self.waiting, []
        self._continue()
        return waited

    def _freeze(self, message: wire.Message, fds: list[int]) -> None:
        """Hold. ``fds`` is cgroup.procs of a frozen group, or nothing: then, or where it is refused, signals do it.

        Answers when every process is in the group, or has stopped as far as it does within a second.
        """
        self.holding = True
        if not fds or not _move_all(fds[0]):
            self._stop()
        wire.reply(self.channel, message, {"ok": 1})

    def _pause(self, message: wire.Message, fds: list[int]) -> None:
        """Stop what runs, for a moment; what starts meanwhile runs."""
        if not self.holding:
            self._stop(wait=False)
        wire.reply(self.channel, message, {"ok": 1})

    def _resume(self, message: wire.Message, fds: list[int]) -> None:
        if not self.holding:
            self._continue()
        wire.reply(self.channel, message, {"ok": 1})

    def _stop(self, *, wait: bool = True) -> None:
        before = {pid for pid, state in _states() if state in "Tt"}
        # One step for all: what is just forking gets the signal, or its child does (kernel/fork.c, copy_process).
        _signal(-1, signal.SIGSTOP)
        until = time.monotonic() + _STOP_FOR_S
        while wait and any(state not in "TtZX" for _, state in _states()) and time.monotonic() < until:
            time.sleep(0.002)
        self.stopped = sorted({*self.stopped, *(pid for pid, _ in _states() if pid not in before)})

    def _continue(self) -> None:
        stopped, self.stopped = self.stopped, []
        for pid in stopped:
            _signal(pid, signal.SIGCONT)

    def _usage(self, message: wire.Message, fds: list[int]) -> None:
        """What ended and reaped descendants used: seconds of CPU, bytes of disk."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        wire.reply(self.channel, message, {
            "cpu_s": usage.ru_utime + usage.ru_stime, "peak_kb": usage.ru_maxrss,
            "read": usage.ru_inblock * _BLOCK, "written": usage.ru_oublock * _BLOCK,
        })


def _move_all(group: int) -> bool:
    """Move every process but us into ``group``: those moved cannot fork, so each round leaves fewer. False: we may not.

    Numbers are the box's own, so whatever was reused meanwhile, nothing of the host is moved.
    """
    moved: set[int] = set()
    while left := [pid for pid, state in _states() if pid not in moved and state not in "ZX"]:
        for pid in left:
            moved.add(pid)
            try:
                os.write(group, b"%d" % pid)
            except ProcessLookupError:
                pass  # it ended
            except OSError:
                return False
    return True


def _states() -> list[tuple[int, str]]:
    """The box's processes but ourselves, each with its state: proc(5), stat."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    found.append((int(name), chr(file.read().rpartition(b")")[2].split()[0][0])))
            except (OSError, IndexError):
                continue  # it ended while we looked
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it is gone


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
