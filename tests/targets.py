"""What attacks are after, planted in the outer place of ``outer.py``: files, sockets, addresses, keys, a process."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import resource
import shutil
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from woodshed.sandbox.native import cgroups

SECRET = "woodshed-secret-of-the-host"
MARK = "4242.4242"
ADDRESSES = ("169.254.169.254", "203.0.113.7", "2001:db8::7")
PORTS = {"http": 80, "dns": 53, "quic": 443}
_RTM_NEWADDR, _REPLACE = 20, 0x1 | 0x4 | 0x400 | 0x100  # NLM_F_REQUEST, ACK, CREATE, REPLACE

_kept: list[Any] = []


def plant(base: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plant all; what attacks are told of them, and what this place cannot offer (fact -> why; empty where it can)."""
    fake = base / "fake"
    fake.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "fake", str(fake)], check=True)
    # Not to be touched by an attack that gets out; what engines need stays writable.
    bound = fake / "bound"
    bound.mkdir()
    secret = fake / "secret"
    secret.write_text(SECRET)
    for_root = bound / "for-root"
    for_root.write_text(SECRET)
    for_root.chmod(0o600)
    helper = bound / "setuid"
    shutil.copy("/usr/bin/id", helper)
    helper.chmod(0o4755)
    _addresses()
    heard: list[str] = []
    _listen(heard)
    name = f"woodshed-{os.getpid()}-{os.urandom(4).hex()}"
    _abstract(name)
    process = subprocess.Popen(["sleep", MARK])
    _kept.append(process)
    _keys()
    told = {
        "secret": str(secret), "fake": str(fake), "bound": str(bound), "word": SECRET, "abstract": name,
        "addresses": ADDRESSES, "ports": PORTS, "pid": process.pid, "mark": MARK,
        "handle": (handle := _handle(secret)),
    }  # fmt: skip
    return told, _facts(handle)


def _addresses() -> None:
    """Loopback up, with addresses that stand for the metadata service, a machine and one by IPv6."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", 1 | 64))  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as route:
        for text in ADDRESSES:
            family = socket.AF_INET6 if ":" in text else socket.AF_INET
            raw = socket.inet_pton(family, text)
            # rtnetlink(7): ifaddrmsg (family, prefix length, flags, scope, index of lo), IFA_LOCAL and IFA_ADDRESS
            body = struct.pack("BBBBI", family, len(raw) * 8, 0x02 if family == socket.AF_INET6 else 0, 0, 1)
            for kind in (2, 1):
                body += struct.pack("HH", 4 + len(raw), kind) + raw
            route.send(struct.pack("IHHII", 16 + len(body), _RTM_NEWADDR, _REPLACE, 1, 0) + body)
            code = struct.unpack_from("i", route.recv(4096), 16)[0]
            if code and family == socket.AF_INET:
                raise OSError(-code, os.strerror(-code), text)


def _listen(heard: list[str]) -> None:
    """Services on every address: HTTP by TCP, DNS and QUIC by UDP. Each answers with the secret."""
    for family, anywhere in ((socket.AF_INET, ""), (socket.AF_INET6, "::")):
        with suppress(OSError):  # no IPv6 here
            tcp = socket.create_server((anywhere, PORTS["http"]), family=family)
            _in_thread(_serve_tcp, tcp)
            for port in (PORTS["dns"], PORTS["quic"]):
                udp = socket.socket(family, socket.SOCK_DGRAM)
                if family == socket.AF_INET6:
                    udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                udp.bind((anywhere, port))
                _in_thread(_serve_udp, udp)


def _abstract(name: str) -> None:
    unix = socket.socket(socket.AF_UNIX)
    unix.bind("\0" + name)
    unix.listen()
    _in_thread(_serve_tcp, unix)


def _in_thread(serve: Any, end: socket.socket) -> None:
    _kept.append(end)
    threading.Thread(target=serve, args=(end,), daemon=True).start()


def _serve_tcp(end: socket.socket) -> None:
    while True:
        peer, _ = end.accept()
        with peer, suppress(OSError):
            peer.sendall(SECRET.encode())


def _serve_udp(end: socket.socket) -> None:
    while True:
        data, peer = end.recvfrom(4096)
        with suppress(OSError):
            end.sendto(SECRET.encode() + b" heard " + data[:200], peer)


def _keys() -> None:
    """A session keyring with a secret, as a login has one. keyctl(2), add_key(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    keyctl, add_key = (250, 248) if platform.machine() == "x86_64" else (219, 217)
    libc.syscall(ctypes.c_long(keyctl), ctypes.c_long(1), None)  # KEYCTL_JOIN_SESSION_KEYRING
    text = SECRET.encode()
    libc.syscall(ctypes.c_long(add_key), b"user", b"woodshed", text, ctypes.c_long(len(text)), ctypes.c_long(-3))


def _sysctl(name: str) -> int:
    try:
        return int(Path("/proc/sys", name).read_text())
    except (OSError, ValueError):
        return 0


def _family(number: int, kind: int, protocol: int = 0) -> str:
    try:
        socket.socket(number, kind, protocol).close()
    except PermissionError:
        return ""
    except OSError as error:
        return f"the kernel has none ({error.strerror})"
    return ""


def _ia32() -> str:
    """In a child: a kernel without the 32-bit table kills for ``int 0x80``."""
    code = "import mmap, ctypes; m = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex('53b814000000cd805bc3'));" \
        " ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    return "" if done.returncode == 0 else "the kernel has no 32-bit calls"


def _handle(path: Path) -> str:
    """name_to_handle_at(2), in hex; empty where the file system has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = 303 if platform.machine() == "x86_64" else 264
    held, mount = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128)), ctypes.c_int()
    if libc.syscall(ctypes.c_long(number), ctypes.c_long(-100), os.fsencode(path), held, ctypes.byref(mount), 0):
        return ""
    return held.raw[: 8 + struct.unpack_from("I", held.raw)[0]].hex()


def _facts(handle: str) -> dict[str, Any]:
    x86 = platform.machine() == "x86_64"
    return {
        "x86-64": "" if x86 else f"this is {platform.machine()}",
        "TIOCSTI": "" if _sysctl("dev/tty/legacy_tiocsti") else "the kernel refuses it (dev.tty.legacy_tiocsti is 0)",
        "io_uring": "the kernel refuses it (kernel.io_uring_disabled)" if _sysctl("kernel/io_uring_disabled") else "",
        "perf": "" if _sysctl("kernel/perf_event_paranoid") < 3 else "the kernel refuses it (perf_event_paranoid)",
        "IPv6": "" if Path("/proc/net/if_inet6").exists() and _six() else "the kernel has none",
        "vsock": _family(40, 1), "alg": _family(38, 5), "xdp": _family(44, 3), "packet": _family(17, 3),
        "udplite": _family(2, 2, 136),
        "device": "" if Path("/dev/zero").is_char_device() else "no /dev/zero",
        "ia32": _ia32(), "handle": "" if handle else "no file handles here",
        "watchers": "" if _sysctl("fs/inotify/max_user_instances") == 128 else "fs.inotify.max_user_instances is set",
        "core": "" if resource.getrlimit(resource.RLIMIT_CORE)[1] else "the limit is 0 already (ulimit -Hc)",
        "sysrq": "" if Path("/proc/sysrq-trigger").exists() else "the kernel has no sysrq",
        "cgroups": _cgroups(), "cgroup v1": "" if Path("/sys/fs/cgroup/memory/release_agent").exists() else "version 2",
        "pid_max": "" if tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 14) else "before 6.14",
    }  # fmt: skip


def _six() -> bool:
    return any("20010db8" in line for line in Path("/proc/net/if_inet6").read_text().splitlines())


def _cgroups() -> str:
    return "" if "memory" in cgroups.control().parents else "this process may make no memory cgroup: root has them"
