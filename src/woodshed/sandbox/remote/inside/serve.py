"""PID 1 of a sandbox that another program made: the native engine's operations, asked over standard input and output.

The runtime has made the namespaces, the mounts and the cgroup; capabilities, no_new_privs, the seccomp filter and the
rlimits are ours, as in a native box, and so is everything that is asked. When the stream ends, so does the box.
"""
# ruff: noqa: PTH102, PTH208, SIM105
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from typing import Any, NoReturn, cast

from woodshed.sandbox.native.inside import confine, init, syscalls, wire
from woodshed.sandbox.native.inside.commands import Commands
from woodshed.sandbox.native.inside.files import Files
from woodshed.sandbox.remote.inside import marks, resolve, state, terminals
from woodshed.sandbox.remote.inside.relay import Broken, Relay

_CHUNK = 1 << 18
_COUNTERS = ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events")
"""Where version 1 and 2 count the processes killed for want of memory, of the box's own group."""


class Road:
    """The channel as the operations know it: messages with descriptors, over two streams of bytes."""

    def __init__(self, reading: int, writing: int, poller: select.poll, ended: Ended) -> None:
        self.reading, self.writing, self._poller, self._ended = reading, writing, poller, ended
        self.arrived: deque[tuple[bytes, list[int]]] = deque()
        self.relay = Relay(2, lambda data, fds: self.arrived.append((data, fds)), self._watch)

    def _watch(self, fd: int, events: int) -> None:
        if events:
            self._poller.register(fd, events)
        else:
            self._poller.unregister(fd)

    def sendmsg(self, buffers: list[bytes], ancillary: list[Any], flags: int = 0) -> int:
        """As a socket's. What wire.send sends."""
        fds: list[int] = []
        for _, _, payload in ancillary:
            fds.extend(struct.unpack(f"{len(payload) // 4}i", payload))
        data = self._ended.told(buffers[0]) if buffers[0] != b"M" else buffers[0]
        self.relay.send(data, fds, asks=False)
        return len(data)

    def read(self) -> bool:
        """Take what came; False where the stream has ended."""
        try:
            data = os.read(self.reading, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        self.relay.feed(data)
        return True

    def write(self) -> None:
        """Send what can be sent now. Raises BrokenPipeError where nobody reads."""
        try:
            while self.relay.outgoing:
                self.relay.sent(os.write(self.writing, memoryview(self.relay.outgoing)[:_CHUNK].tobytes()))
        except BlockingIOError:
            pass
        self._watch_out()

    def _watch_out(self) -> None:
        wanted = select.POLLOUT if self.relay.outgoing else 0
        if wanted:
            self._poller.register(self.writing, wanted)
        else:
            try:
                self._poller.unregister(self.writing)
            except KeyError:
                pass  # it was not watched

    def message(self) -> tuple[wire.Message, list[int]] | None:
        """The next one that has come."""
        if not self.arrived:
            return None
        data, fds = self.arrived.popleft()
        if data == b"M":
            size = os.fstat(fds[0]).st_size
            if size > wire.LARGEST:
                raise Broken("a message too large")
            data = os.pread(fds[0], size, 0)
            os.close(fds.pop(0))
        return json.loads(data), fds

    def close(self) -> None:
        """In a child, which speaks to nobody."""
        self.relay.forget()
        for fd in (self.reading, self.writing):
            if fd >= 0:
                os.close(fd)
        self.reading = self.writing = -1


class Ended:
    """Adds to the end of a command what only its box can know: whether memory ran out meanwhile."""

    def __init__(self) -> None:
        self._fd, self._seen = -1, 0
        for path in _COUNTERS:
            try:
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                break
            except OSError:
                continue
        self._seen = self._killed()

    def _killed(self) -> int:
        try:
            words = os.pread(self._fd, 4096, 0).split() if self._fd >= 0 else []
            return int(words[words.index(b"oom_kill") + 1])
        except (OSError, ValueError, IndexError):
            return 0

    def told(self, data: bytes) -> bytes:
        """The message ``data``, with ``hits`` where it is the end of a command that ran when memory ran out."""
        if b'"exit":' not in data or (killed := self._killed()) == self._seen:
            return data
        self._seen = killed
        message = json.loads(data)
        message["hits"] = [*message.get("hits", ()), "memory_mb"]
        return json.dumps(message, separators=(",", ":")).encode()


def serve() -> NoReturn:
    """Answer until the stream ends. The first message is the plan."""
    reading, writing = _streams()
    poller = select.poll()
    road = Road(reading, writing, poller, Ended())
    try:
        plan = _plan(road)
        _become(plan)
        _follow(road, plan, poller)
    except (BrokenPipeError, ConnectionResetError):
        pass
    except BaseException as error:
        _last_words(road, error)
    os._exit(1)


def _streams() -> tuple[int, int]:
    """Standard input and output at other numbers, which no command gets."""
    reading, writing = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    return reading, writing


def _plan(road: Road) -> dict[str, Any]:
    while not road.arrived:
        if not road.read():
            os._exit(0)
    told = road.message()
    assert told is not None
    return told[0]


def _become(plan: dict[str, Any]) -> None:
    """What a native box's first process is when it starts: see native/inside/server.py and init.py."""
    syscalls.set_name(b"woodshed-box")
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    # Not the default: only Linux spares a PID 1 that. Not ignored: commands would inherit it.
    signal.signal(signal.SIGPIPE, lambda *_: None)
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    core = 0 if hard == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (core, core))
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "PathFinder"]
    foreign = resolve.install()
    init.settle(plan)
    _bound_pids(plan["groups"], plan["pids_max"])
    confine.confine(confine.program(syscalls.MACHINE))
    if foreign:
        syscalls.load_filter(confine.guarding_program(syscalls.MACHINE))
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    try:
        os.setsid()
    except PermissionError:
        pass  # the runtime did


def _bound_pids(groups: str, most: int) -> None:
    """The limit of processes, where ``groups`` is a cgroup file system of the container's own kernel, then put away.

    gVisor bounds processes nowhere else. Nothing inside can mount it again.
    """
    if not groups:
        return
    group = groups + "/pids/box"
    os.mkdir(group)
    for name, text in (("pids.max", str(most)), ("cgroup.procs", "1")):
        fd = os.open(f"{group}/{name}", os.O_WRONLY)
        os.write(fd, text.encode())
        os.close(fd)
    for name in os.listdir(groups):
        try:
            syscalls.unmount(f"{groups}/{name}")
        except OSError as error:
            if error.errno != errno.EINVAL:  # a directory or link between the mounts
                raise
    syscalls.unmount(groups)


def _follow(road: Road, plan: dict[str, Any], poller: select.poll) -> NoReturn:
    wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    channel = cast(socket.socket, road)  # of a socket it has what wire.py uses
    commands = Commands(channel, [], marks.marks())
    world = state.State(channel, plan["workdir"])
    serving = init.Init(channel, commands, Files(channel), world.works)
    serving.operations |= world.operations | terminals.Terminals(commands, road.relay).operations
    os.register_at_fork(after_in_child=road.close)
    for fd in (road.reading, road.writing):
        os.set_blocking(fd, False)
    wire.send(channel, {"ready": 1})
    poller.register(road.reading, select.POLLIN)
    poller.register(wake, select.POLLIN)
    while True:
        while told := road.message():
            serving.answer(*told)
        road.write()
        for fd, events in poller.poll():
            if fd == wake:
                os.read(wake, 4096)
                commands.reap()
            elif fd == road.reading:
                if not road.read():
                    os._exit(0)
            elif fd == road.writing:
                road.write()
            else:
                road.relay.ready(fd, events)


def _last_words(road: Road, error: BaseException) -> None:
    try:
        wire.send(cast(socket.socket, road), {"error": f"{type(error).__name__}: {error}"})
        os.set_blocking(road.writing, True)
        road.write()
        time.sleep(0.05)  # a runtime that stops listening at our end would lose them
    except OSError:
        pass  # the engine is gone, and so are we
