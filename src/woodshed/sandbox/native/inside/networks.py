"""Network namespaces of boxes: a loopback, and by policy doors to the engine. One left untouched serves another box.

The kernel's making and unmaking of one is about a fifth of what a box costs. A namespace comes back only when no
process of its box lives, no socket of it is left anywhere and no counter moved: then nothing in it can tell what was
done there. It belongs to the fork server's user namespace: no box has a right over it.

Where a policy gives a box a network, every IPv4 address is one of its own loopback's, and what is sent anywhere arrives
at sockets made here, before anything runs in the box, which the engine serves. IPv6 has no route but to itself.
"""
from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
from collections.abc import Sequence

from woodshed.sandbox.native.inside import syscalls

_MOST = 16
"""Namespaces followed; those of further boxes end with them. Each costs the server two descriptors."""
# The box's root has no CAP_NET_BIND_SERVICE here, yet every port below is the box's own.
_BACKLOG = 128
"""Connections that wait to be accepted, on each port."""
_PORTS = "/proc/sys/net/ipv4/ip_unprivileged_port_start"


class Networks:
    """Enters a namespace for the next box, and knows which ones their boxes have left."""

    def __init__(self) -> None:
        self._lent: dict[int, int] = {}  # pidfd of a box's first process -> namespace
        self._free: list[int] = []
        self._fresh = b""  # the counters of one that nobody has been in

    def enter(self) -> int:
        """Go into a namespace nobody is in, and return a descriptor of it, for :meth:`lend`."""
        self._collect()
        while self._free:
            fd = self._free.pop()
            syscalls.setns(fd, syscalls.CLONE_NEWNET)
            if untouched() and counters() == self._fresh:
                return fd
            os.close(fd)
        syscalls.unshare(syscalls.CLONE_NEWNET)
        _loopback_up()
        fd = os.open(_PORTS, os.O_WRONLY)
        os.write(fd, b"0")
        os.close(fd)
        self._fresh = self._fresh or counters()
        return os.open("/proc/self/ns/net", os.O_RDONLY)

    def lend(self, fd: int, pidfd: int) -> None:
        """The box of ``pidfd`` has the namespace ``fd``. Both stay the caller's."""
        if len(self._lent) < _MOST:
            self._lent[os.dup(pidfd)] = os.dup(fd)

    def forget(self) -> None:
        """Close every descriptor of this process: it is a box now."""
        for fd in (*self._lent, *self._lent.values(), *self._free):
            os.close(fd)

    def _collect(self) -> None:
        """A pidfd is readable when every process of the namespace behind it has ended."""
        if not self._lent:
            return
        ended = select.poll()
        for pidfd in self._lent:
            ended.register(pidfd, select.POLLIN)
        for pidfd, _ in ended.poll(0):
            self._free.append(self._lent.pop(pidfd))
            os.close(pidfd)


def doors(ports: Sequence[int]) -> list[socket.socket]:
    """Where all that is sent from the own namespace arrives: UDP and TCP port 53, and TCP ``ports`` in order."""
    made: list[socket.socket] = []
    try:
        _everything_is_here()
        made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made[0].bind(("0.0.0.0", 53))  # noqa: S104 (every address of a namespace that leads nowhere)
        for port in (53, *ports):
            made.append(listener := socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.bind(("0.0.0.0", port))  # noqa: S104 (see above)
            listener.listen(_BACKLOG)
    except OSError:
        for end in made:
            end.close()
        raise
    return made


def _everything_is_here() -> None:
    """``ip route add local 0.0.0.0/0 dev lo``: include/uapi/linux/rtnetlink.h, RTM_NEWROUTE with one attribute."""
    family, table, by, scope, kind = socket.AF_INET, 255, 3, 254, 2  # RT_TABLE_LOCAL, RTPROT_BOOT, _HOST, RTN_LOCAL
    route = struct.pack("BBBBBBBBI", family, 0, 0, 0, table, by, scope, kind, 0)
    route += struct.pack("HHI", 8, 4, 1)  # RTA_OIF: the loopback is always the first device
    flags = 0x1 | 0x4 | 0x400  # NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.send(struct.pack("IHHII", 16 + len(route), 24, flags, 1, 0) + route)
        failed: int = struct.unpack_from("i", netlink.recv(4096), 16)[0]
    if failed:
        raise OSError(-failed, f"a route to the loopback: {os.strerror(-failed)}")


def untouched() -> bool:
    """Whether the own network namespace holds no socket."""
    # "sockets: used N", of all families; "TCP: inuse N orphan N tw N …": closed ones that still hold a port.
    lines = _read("sockstat").split(b"\n")
    return lines[0] == b"sockets: used 0" and b" orphan 0 tw 0 " in lines[1]


def counters() -> bytes:
    """Every count of the own network namespace, of packets the loopback carried and of those that found no way out."""
    return b"".join(_read(name) for name in ("dev", "snmp", "snmp6", "netstat"))


def _read(name: str) -> bytes:
    """A file of the own network namespace, in one piece; empty where the kernel has none, as without IPv6."""
    try:
        fd = os.open(f"/proc/self/net/{name}", os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def _loopback_up() -> None:
    # SIOCSIFFLAGS with IFF_UP | IFF_RUNNING: include/uapi/linux/sockios.h, if.h
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", 1 | 64))
