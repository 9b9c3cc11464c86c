"""The fork server: one small single-threaded process that makes boxes when told to, and dies with its engine.

Each request names the layers and carries one end of the new box's channel. The other end is the engine's; the box's
first process (PID 1 of its own namespaces) serves it from then on, and the fork server forgets the box.
"""
# ruff: noqa: SIM105
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from typing import Any

from woodshed.sandbox.native.inside import confine, init, mounts, networks, rebase, syscalls, wire
from woodshed.sandbox.native.inside.networks import Networks

_OPEN_FILES = 65536
_NO_SETUID_FIXUP = 4
"""include/uapi/linux/securebits.h: root that makes a user namespace as another user does so with root's rights, which
some distributions demand. A new user namespace begins without this bit."""
_NAMESPACES = syscalls.NAMESPACES & ~syscalls.CLONE_NEWNET
"""The network's is there before: see networks.py."""


def main(channel_fd: int, dev: str, privileged: bool) -> None:
    """Serve the socket ``channel_fd`` until its other end closes. ``dev`` is an empty directory for /dev's template."""
    syscalls.set_name(b"woodshed-box")
    os.umask(0o022)
    channel = socket.socket(fileno=channel_fd)
    _settle()
    try:
        _own_mounts(privileged)
        mounts.make_dev(dev)
        server = Server(channel, dev, privileged)
    except (OSError, KeyError) as error:
        wire.send(channel, {"error": f"{type(error).__name__}: {error}"})
        return
    wire.send(channel, {"ready": os.getpid()})
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every page
    while True:
        message, fds = wire.receive(channel)
        if message is None:
            os._exit(0)
        if message.get("op") == "rebase":
            rebase.begin(message, fds, privileged)
        else:
            server.create(message, fds[0])


def _settle() -> None:
    """What every box and command inherits, set once."""
    # Ended boxes are reaped by the kernel; the engine watches their pidfds.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python changes these; a PID 1 ignores what is at its default
    _no_core()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    hard = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))


def _no_core() -> None:
    """A crash leaves no core and, where core(5) pipes it into a program of the host's root, does not start that.

    Only the limit of 1 does both: 0 is not asked where there is a pipe (fs/coredump.c). Who has 0 already keeps it.
    """
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _own_mounts(privileged: bool) -> None:
    """A mount namespace of our own, so that the template vanishes with us; an ordinary user needs a user namespace."""
    if privileged:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.prctl(syscalls.PR_SET_SECUREBITS, _NO_SETUID_FIXUP)
    else:
        uid, gid = os.getuid(), os.getgid()
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        _write_maps("self", uid, gid, 1)
    # Not shared back to the host; what the host mounts later is still seen here.
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)


def _write_maps(pid: int | str, uid: int, gid: int, count: int) -> None:
    if count == 1:
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", f"0 {uid} {count}")
    _write(f"/proc/{pid}/gid_map", f"0 {gid} {count}")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


class Server:
    """Makes boxes, one at a time; what is slow of it happens in the box's own process."""

    def __init__(self, channel: socket.socket, dev: str, privileged: bool) -> None:
        self.channel, self.dev, self.privileged = channel, dev, privileged
        self.filter = confine.program(syscalls.MACHINE)
        self.networks = Networks()

    def create(self, plan: dict[str, Any], box_fd: int) -> None:
        """Fork the box's first process and hand it its mounts; the engine gets its pidfd or an error."""
        box = socket.socket(fileno=box_fd)
        ends = [box]
        held: list[int] = []
        try:
            # Opened out here: what counts when a process is moved is who opened the file.
            held += (groups := [os.open(path + "/cgroup.procs", os.O_WRONLY) for path in plan["cgroups"]])
            held.append(network := self.networks.enter())
            # In the new namespace: the one before must not hold a socket of ours.
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ends += ours, theirs
            ends += (doors := networks.doors(plan["egress"]) if plan["egress"] else [])
            pid, pidfd = self._clone(plan["first_id"])
            if pid == 0:
                os.close(network)
                for door in doors:
                    door.close()
                self._become_box(plan, box, ours, theirs, groups)
            held.append(pidfd)
            if not doors:  # with doors it is of no use to the next
                self.networks.lend(network, pidfd)
            theirs.close()
            wire.send(box, {"pid": pid, "doors": len(doors)}, [pidfd, *(door.fileno() for door in doors)])
            self._equip(plan, pid, ours, held)
        except (OSError, ValueError) as error:
            _report(box, error)
        finally:
            for fd in held:
                os.close(fd)
            for end in ends:
                end.close()

    def _clone(self, first_id: int) -> tuple[int, int]:
        """The box's first process, in namespaces of its own.

        Root makes the user namespace as the first id of the box: what the kernel counts by maker, up to the host
        (inotify instances, say), is then the box's own, and not what root's daemons and other boxes share.
        """
        if not self.privileged:
            return syscalls.clone(_NAMESPACES)
        os.seteuid(first_id)
        try:
            pid, pidfd = syscalls.clone(_NAMESPACES)
        except OSError:
            os.seteuid(0)
            raise
        if pid:
            os.seteuid(0)
        return pid, pidfd

    def _equip(self, plan: dict[str, Any], pid: int, ours: socket.socket, held: list[int]) -> None:
        userns = 0
        if self.privileged:
            first = plan["first_id"]
            _write_maps(pid, first, first, 65536)
            held.append(userns := os.open(f"/proc/{pid}/ns/user", os.O_RDONLY))
        else:
            _write_maps(pid, 0, 0, 1)
        made = mounts.clones(plan, self.dev, userns)
        held += made
        wire.send(ours, {}, made)

    def _become_box(
        self, plan: dict[str, Any], box: socket.socket, ours: socket.socket, theirs: socket.socket, groups: list[int]
    ) -> None:
        """Never returns: the box's first process ends here, whatever happens."""
        try:
            self.channel.close()
            self.networks.forget()
            ours.close()
            message, fds = wire.receive(theirs)
            theirs.close()
            if message is None:
                os._exit(1)
            if self.privileged:
                os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            socket.sethostname("sandbox")
            # Whatever is not loaded by now would come out of the box's own files, written by those we guard against.
            sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "PathFinder"]
            mounts.build(plan, fds)
            init.serve(plan, box, groups, self.filter)
        except BaseException as error:
            _report(box, error)
        finally:
            os._exit(1)


def _report(box: socket.socket, error: BaseException) -> None:
    try:
        wire.send(box, {"error": f"{type(error).__name__}: {error}"})
    except OSError:
        pass  # the engine is gone, and so are we
