"""The system calls that Python lacks, through libc's ``syscall``. Failures raise OSError with the call's name.

Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64) of Linux 6.18. The
aarch64 column follows the table; no such machine was at hand to run it.
"""
# ruff: noqa: PTH123
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import ctypes
import os

MACHINE = os.uname().machine
_NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {"clone": 56, "pivot_root": 155, "capset": 126},
    "aarch64": {"clone": 220, "pivot_root": 41, "capset": 91},
}
# Since Linux 5.1 new calls have one number everywhere.
_COMMON = {"open_tree": 428, "move_mount": 429, "openat2": 437, "mount_setattr": 442, "landlock_create_ruleset": 444}
NUMBERS: dict[str, int] = _NUMBERS.get(MACHINE, {}) | _COMMON

# include/uapi/linux/sched.h
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_PIDFD = 0x10000000, 0x20000000, 0x40000000, 0x1000
NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)
# include/uapi/linux/mount.h
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 32, 4096, 16384
MS_SLAVE, MNT_DETACH = 1 << 19, 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_IDMAP = 1, 2, 4, 0x00100000
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE, AT_SYMLINK_NOFOLLOW = -100, 0x1000, 0x8000, 0x100
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_SYMLINKS = 1, 4, 0x10
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
# include/uapi/linux/prctl.h
PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 15, 22, 24, 38
_SIGCHLD = 17

_libc = ctypes.CDLL(None, use_errno=True)
# Holds the GIL during the call: the child of a raw clone must come back owning it.
_held = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = _held.syscall.restype = ctypes.c_long
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


class _MountAttr(ctypes.Structure):
    _fields_ = (("set", ctypes.c_uint64), ("clear", ctypes.c_uint64), ("propagation", ctypes.c_uint64),
                ("userns", ctypes.c_uint64))


class OpenHow(ctypes.Structure):
    """struct open_how of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _fail(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_uint32] | ctypes.Structure) -> int:
    """The result of the system call ``name``; structures and arrays go by reference."""
    passed = [
        ctypes.c_long(argument) if isinstance(argument, int)
        else ctypes.c_char_p(argument) if isinstance(argument, bytes)
        else ctypes.byref(argument)
        for argument in arguments
    ]
    result: int = _libc.syscall(ctypes.c_long(NUMBERS[name]), *passed)
    if result < 0:
        raise _fail(name)
    return result


def clone(flags: int) -> tuple[int, int]:
    """Fork into new namespaces in one step: (pid, pidfd) in the parent, (0, -1) in the child.

    Only for a single-threaded process; Python's own fork bookkeeping is done as in ``os.fork``.
    """
    pidfd = ctypes.c_int(-1)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = _held.syscall(
        ctypes.c_long(NUMBERS["clone"]), ctypes.c_long(flags | CLONE_PIDFD | _SIGCHLD), ctypes.c_long(0),
        ctypes.byref(pidfd), ctypes.c_long(0), ctypes.c_long(0),
    )
    code = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0, -1
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, f"clone: {os.strerror(code)}")
    return pid, pidfd.value


def unshare(flags: int) -> None:
    """Leave the namespaces named by ``flags`` for new ones."""
    if _libc.unshare(ctypes.c_int(flags)):
        raise _fail("unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    """mount(2)."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    if _libc.mount(encoded[0], encoded[1], encoded[2], flags, encoded[3]):
        raise _fail(f"mount {kind or source} at {target}")


def unmount(target: str) -> None:
    """Detach the mount at ``target`` now; it goes when it is no longer used."""
    if _libc.umount2(os.fsencode(target), MNT_DETACH):
        raise _fail(f"umount {target}")


def pivot_root() -> None:
    """The current directory becomes the root; the old root lies stacked on it."""
    call("pivot_root", b".", b".")


def tree(path: str, *, recursive: bool = False) -> int:
    """A detached clone of the mount at ``path``: a descriptor for :func:`attach`."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    return call("open_tree", AT_FDCWD, os.fsencode(path), flags)


def set_attributes(fd: int, attributes: int, *, userns: int = 0, recursive: bool = False) -> None:
    """Add mount attributes to a detached clone; with ``userns`` its owners are mapped as in that namespace."""
    how = _MountAttr(attributes | (ATTR_IDMAP if userns else 0), 0, 0, userns)
    call("mount_setattr", fd, b"", AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0), how, ctypes.sizeof(how))


def attach(fd: int, target: str) -> None:
    """Put a detached clone at ``target`` of the own mount namespace; links in ``target`` are followed."""
    flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_SYMLINKS
    call("move_mount", fd, b"", AT_FDCWD, os.fsencode(target), flags)


def open_plain(path: str, flags: int, mode: int = 0) -> int:
    """open(2) that passes no magic link (/proc/PID/fd, exe, root): those lead out of the path's own file system."""
    how = OpenHow(flags | os.O_CLOEXEC, mode if flags & os.O_CREAT else 0, RESOLVE_NO_MAGICLINKS)
    return call("openat2", AT_FDCWD, os.fsencode(path), how, ctypes.sizeof(how))


def prctl(option: int, value: int | bytes = 0, extra: ctypes.Structure | None = None) -> None:
    """prctl(2) with one or two arguments."""
    first = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    second = ctypes.c_ulong(0) if extra is None else ctypes.byref(extra)
    if _libc.prctl(option, first, second, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise _fail(f"prctl {option}")


def set_name(name: bytes) -> None:
    """What ps shows: the process's name and, over the memory of its arguments and environment, nothing else."""
    prctl(PR_SET_NAME, name)
    with open("/proc/self/stat", "rb") as file:
        # proc(5), fields 48-51: arg_start, arg_end, env_start, env_end; counted after the name's closing bracket.
        fields = file.read().rpartition(b")")[2].split()[45:49]
    start, end, env_start, env_end = (int(field) for field in fields)
    if env_end > env_start > 0:
        ctypes.memset(env_start, 0, env_end - env_start)
    if end > start > 0:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, name, min(len(name), end - start - 1))
