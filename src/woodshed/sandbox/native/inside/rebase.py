"""A live box gets a new root: what it changed so far becomes a layer, and it goes on over an empty directory.

PID 1 has no right to mount anything. It only promises to rest (:class:`Rest`) and hands over its namespaces; a child of
the fork server, whose user namespace is the parent of the box's, enters them and does the work (:func:`run`). Nothing
else may run in the box meanwhile: a process with an open file or a directory in the old root would keep it.

pivot_root(2) moves every process whose root or directory *is* the old root, so PID 1 need not do anything itself
(fs/fs_struct.c, ``chroot_fs_refs``). Mounts of the old root (/proc, /dev, /tmp …) move to the new one with all they
hold. The kernel logs that the new lower directory was another overlay's upper one; that other one is about to go.
"""
# ruff: noqa: PTH103, PTH112, PTH123, SIM105
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import errno
import os
import socket
from typing import Any, NoReturn

from woodshed.sandbox.native.inside import mounts, syscalls, wire
from woodshed.sandbox.native.inside.commands import Commands

_ANSWER, _WORKING = 4096, b"working"
_NAMESPACES = ("/proc/self/ns/user", "/proc/self/ns/mnt")

_LONGEST = 3900
"""Bytes of a mount point, below PATH_MAX: what the box may have renamed its parents to."""


class Mounted:
    """One mount: its id, its parent's, its file system, which part of that, and where it stands."""

    def __init__(self, ident: int, parent: int, device: bytes, part: bytes, point: bytes) -> None:
        self.ident, self.parent, self.device, self.part, self.point = ident, parent, device, part, point


class Rest:
    """PID 1's part: to stand still while its root is changed."""

    def __init__(self, channel: socket.socket, commands: Commands) -> None:
        self.channel, self.commands = channel, commands
        self.operations: dict[str, wire.Operation] = {"rest": self._rest}

    def _rest(self, message: wire.Message, fds: list[int]) -> None:
        """Answer ``busy`` where anything else runs; otherwise hand over our namespaces and wait.

        ``fds`` is a socket on which whoever changes the root says how that went; its end means that nobody does.
        """
        self.commands.reap()
        try:
            # Orphans are ours, too: no child means no other process in the box.
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            pass
        else:
            wire.reply(self.channel, message, {"busy": 1})
            return
        os.chdir("/")  # the last command's directory may still be ours
        namespaces = [os.open(path, os.O_RDONLY) for path in _NAMESPACES]
        try:
            wire.send(self.channel, {"id": message["id"], "started": 1}, namespaces)
        finally:
            for fd in namespaces:
                os.close(fd)
        if (said := os.read(fds[0], _ANSWER)) == _WORKING:
            said = os.read(fds[0], _ANSWER) or _WORKING
        wire.reply(self.channel, message, {"said": said.decode(errors="replace")})


def begin(plan: dict[str, Any], fds: list[int], privileged: bool) -> None:
    """Fork the process that changes the root of a resting box; the fork server goes on. Closes ``fds``."""
    try:
        if os.fork() == 0:
            run(plan, fds, privileged)
    except OSError as error:
        _say(fds[-1], f"unchanged: {error}")
    finally:
        for fd in fds:
            os.close(fd)


def run(plan: dict[str, Any], fds: list[int], privileged: bool) -> NoReturn:
    """Give the box of ``fds`` (user and mount namespace, and PID 1's socket) the root that ``plan`` names.

    Says ``done``, or why not: ``unchanged: …`` where all is as before, ``broken: …`` where the box cannot go on. While
    it is at work the layers are reachable inside (by ``/..``): hence nothing may run, and they are read-only.
    """
    userns, mntns, rest = fds
    state = "unchanged"
    try:
        layers = mounts.layer_clones(plan, userns if privileged else 0, sealed=True)
        proc = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY)  # the box's /proc does not show us
        syscalls.setns(userns, syscalls.CLONE_NEWUSER)
        if privileged:
            os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        syscalls.setns(mntns, syscalls.CLONE_NEWNS)
        os.open("/", os.O_PATH)  # ours until we end: what the old root has cached is let go of behind everybody's back
        standing = _mounted(proc)
        root = next(one for one in standing if one.point == b"/")
        flags, sealed = _flags(b"/"), _sealed(standing, root)
        _say(rest, "working")  # whoever hears nothing after this must give the box up
        mounts.cover("/")
        try:
            os.chdir("/..")  # leads onto what covers the root
            mounts.overlay(layers)
            _check(standing, root)
        except (OSError, ValueError):
            syscalls.unmount("/..")
            raise
        state = "broken"
        _move([one for one in standing if one not in sealed], root)
        for one, its_flags in sealed.items():
            _bind(one, its_flags)
        if flags & ~mounts.OVERLAY_FLAGS:
            syscalls.mount(None, ".", None, syscalls.MS_BIND | syscalls.MS_REMOUNT | flags)
        syscalls.pivot_root()
        for _ in range(2):  # what covered the old root, and then that: they lie on the new one
            syscalls.unmount(".")
        _say(rest, "done")
    except BaseException as error:
        _say(rest, f"{state}: {type(error).__name__}: {error}")
    finally:
        os._exit(0)


def _say(fd: int, text: str) -> None:
    try:
        os.write(fd, text.encode(errors="replace")[:_ANSWER])
    except OSError:
        pass  # the box is gone


def _mounted(proc: int) -> list[Mounted]:
    """The mounts of this namespace in their order, read from ``proc``, our own directory of the host's /proc.

    proc_pid_mountinfo(5): id, parent's id, device, root, mount point (with octal escapes) …
    """
    with open(os.open("mountinfo", os.O_RDONLY, dir_fd=proc), "rb", buffering=1 << 16) as file:
        lines = [line.split(b" ", 5) for line in file.read().splitlines()]
    return [Mounted(int(line[0]), int(line[1]), line[2], _plain(line[3]), _plain(line[4])) for line in lines]


def _plain(escaped: bytes) -> bytes:
    first, *others = escaped.split(b"\\")
    return first + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in others)


def _flags(point: bytes) -> int:
    return os.statvfs(point).f_flag & mounts.ROOT_FLAGS


def _sealed(standing: list[Mounted], root: Mounted) -> dict[Mounted, int]:
    """Parts of the old root that are mounted once more, with their flags: the new root's take their place.

    Raises OSError for one that something else is mounted on or beneath.
    """
    sealed = {one: _flags(one.point) for one in standing if one.device == root.device and one is not root}
    idents = {one.ident for one in sealed}
    for one in standing:
        if one.parent in idents or (one in sealed and one.parent != root.ident):
            raise OSError(errno.ENOTSUP, "parts of the root are mounted within each other")
    return sealed


def _check(standing: list[Mounted], root: Mounted) -> None:
    """Whether each mount point can be named, and is in the new root, the current directory. Raises OSError."""
    for one in standing:
        if len(one.point) > _LONGEST:
            raise OSError(errno.ENAMETOOLONG, "a mount point has a long path")
        one.point.decode()
        one.part.decode()
        if one.parent == root.ident:
            os.lstat(b"." + one.point)


def _move(standing: list[Mounted], root: Mounted) -> None:
    """Move what stands on the old root to the same places of the new one, which is the current directory.

    Mounts on one place, one upon the other, move one by one: a path leads to the topmost alone.
    """
    for one in standing:
        if one.parent != root.ident:
            continue
        held: list[bytes] = []
        ident = one.ident
        while above := [two.ident for two in standing if two.parent == ident and two.point == one.point]:
            ident = above[0]
            held.append(b"../held%d" % len(held))
        for place in held:
            _make_like(one.point, place)
            syscalls.move(one.point, place)
        syscalls.move(one.point, b"." + one.point)
        for place in reversed(held):
            syscalls.move(place, b"." + one.point)


def _bind(one: Mounted, flags: int) -> None:
    place = "." + one.point.decode()
    syscalls.mount("." + one.part.decode(), place, None, syscalls.MS_BIND)
    syscalls.mount(None, place, None, syscalls.MS_BIND | syscalls.MS_REMOUNT | flags)


def _make_like(point: bytes, place: bytes) -> None:
    """A mount point at ``place`` for what is mounted at ``point``, unless there is one."""
    if os.path.isdir(point):
        os.makedirs(place, exist_ok=True)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
