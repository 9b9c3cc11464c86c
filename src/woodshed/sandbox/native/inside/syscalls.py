"""The system calls that Python lacks, through libc's ``syscall``. Failures raise OSError with the call's name.

Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64) of Linux 6.18. The
aarch64 column follows the table; no such machine was at hand to run it.
"""
# ruff: noqa: PTH123
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

MACHINE = os.uname().machine
_NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {"clone": 56, "pivot_root": 155, "capset": 126},
    "aarch64": {"clone": 220, "pivot_root": 41, "capset": 91},
}
# Since Linux 5.1 new calls have one number everywhere.
_COMMON = {
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "openat2": 437,
    "mount_setattr": 442, "landlock_create_ruleset": 444,
}
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
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC, ATTR_IDMAP = 1, 2, 4, 8, 0x00100000
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE, AT_SYMLINK_NOFOLLOW = -100, 0x1000, 0x8000, 0x100
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_SYMLINKS = 1, 4, 0x10
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
# include/uapi/linux/prctl.h
PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 15, 22, 24, 38
PR_SET_SECUREBITS = 28
_SIGCHLD, _CAPABILITY_VERSION_3 = 17, 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_LONG, _TEXT, _POINTER = ctypes.c_long, ctypes.c_char_p, ctypes.c_void_p


def _prototype(*arguments: type) -> Callable[..., int]:
    """libc's ``syscall`` for one shape of arguments: typed once, a call costs a third of an untyped one."""
    return ctypes.CFUNCTYPE(_LONG, _LONG, *arguments, use_errno=True)(("syscall", _libc))


# Holds the GIL during the call: the child of a raw clone must come back owning it.
_clone = ctypes.PyDLL(None, use_errno=True).syscall
_clone.restype, _clone.argtypes = _LONG, (_LONG, _LONG, _LONG, _POINTER, _LONG, _LONG)
_pivot_root, _open_tree = _prototype(_TEXT, _TEXT), _prototype(_LONG, _TEXT, _LONG)
_move_mount, _mount_setattr = _prototype(_LONG, _TEXT, _LONG, _TEXT, _LONG), _prototype(
    _LONG, _TEXT, _LONG, _POINTER, _LONG)
_fsopen, _fsconfig, _fsmount = _prototype(_TEXT, _LONG), _prototype(_LONG, _LONG, _TEXT, _TEXT, _LONG), _prototype(
    _LONG, _LONG, _LONG)
_openat2, _capset = _prototype(_LONG, _TEXT, _POINTER, _LONG), _prototype(_POINTER, _POINTER)
_landlock_create_ruleset = _prototype(_POINTER, _LONG, _LONG)
_libc.mount.argtypes = (_TEXT, _TEXT, _TEXT, ctypes.c_ulong, _TEXT)
_libc.umount2.argtypes = (_TEXT, ctypes.c_int)
_libc.prctl.argtypes = (ctypes.c_int, _POINTER, _POINTER, _POINTER, _POINTER)


class _MountAttr(ctypes.Structure):
    _fields_ = (("set", ctypes.c_uint64), ("clear", ctypes.c_uint64), ("propagation", ctypes.c_uint64),
                ("userns", ctypes.c_uint64))


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _fail(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")


def clone(flags: int) -> tuple[int, int]:
    """Fork into new namespaces in one step: (pid, pidfd) in the parent, (0, -1) in the child.

    Only for a single-threaded process; Python's own fork bookkeeping is done as in ``os.fork``.
    """
    pidfd = ctypes.c_int(-1)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = _clone(NUMBERS["clone"], flags | CLONE_PIDFD | _SIGCHLD, 0, ctypes.byref(pidfd), 0, 0)
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


def setns(fd: int, kind: int) -> None:
    """Enter the namespace ``fd`` of this ``kind`` (a CLONE_NEW flag)."""
    if _libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)):
        raise _fail("setns")


def mount(source: str | None, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    """mount(2)."""
    if _libc.mount(source and source.encode(), target.encode(), kind and kind.encode(), flags, data and data.encode()):
        raise _fail(f"mount {kind or source} at {target}")


def new_mount(kind: str, options: Sequence[tuple[str, str]], attributes: int) -> int:
    """A detached mount of a new ``kind`` of file system, for :func:`attach`; an option without a value is a flag.

    fsopen(2) and its like; what the file system says about a refusal is in the error.
    """
    context = _fsopen(NUMBERS["fsopen"], kind.encode(), 1)  # FSOPEN_CLOEXEC
    if context < 0:
        raise _fail(f"fsopen {kind}")
    try:
        for name, value in (("source", kind), *options):
            command = 1 if value else 0  # FSCONFIG_SET_STRING, FSCONFIG_SET_FLAG
            if _fsconfig(NUMBERS["fsconfig"], context, command, name.encode(), value.encode() or None, 0) < 0:
                raise _fail(f"fsconfig {kind} {name}={value}")
        if _fsconfig(NUMBERS["fsconfig"], context, 6, None, None, 0) < 0:  # FSCONFIG_CMD_CREATE
            failure = _fail(f"a new {kind}")
            raise OSError(failure.errno, f"{failure.strerror} ({_said(context)})")
        fd = _fsmount(NUMBERS["fsmount"], context, 1, attributes)  # FSMOUNT_CLOEXEC
        if fd < 0:
            raise _fail(f"fsmount {kind}")
        return fd
    finally:
        os.close(context)


def _said(context: int) -> str:
    """The messages of a file system's context, a read each."""
    said: list[str] = []
    try:
        while len(said) < 8:
            said.append(os.read(context, 1024).decode(errors="replace").strip())
    except OSError:
        pass  # ENODATA: no more of them
    return "; ".join(said) or "it does not say why"


def unmount(target: str) -> None:
    """Detach the mount at ``target`` now; it goes when it is no longer used."""
    if _libc.umount2(target.encode(), MNT_DETACH):
        raise _fail(f"umount {target}")


def pivot_root() -> None:
    """The current directory becomes the root; the old root lies stacked on it."""
    if _pivot_root(NUMBERS["pivot_root"], b".", b".") < 0:
        raise _fail("pivot_root")


def tree(path: str, *, recursive: bool = False) -> int:
    """A detached clone of the mount at ``path``: a descriptor for :func:`attach`."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    fd = _open_tree(NUMBERS["open_tree"], AT_FDCWD, os.fsencode(path), flags)
    if fd < 0:
        raise _fail(f"open_tree {path}")
    return fd


def set_attributes(fd: int, attributes: int, *, clear: int = 0, userns: int = 0, recursive: bool = False) -> None:
    """Add and ``clear`` attributes of a mount; with ``userns`` a detached one's owners are mapped as in it."""
    how = _MountAttr(attributes | (ATTR_IDMAP if userns else 0), clear, 0, userns)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    if _mount_setattr(NUMBERS["mount_setattr"], fd, b"", flags, ctypes.byref(how), 32) < 0:
        raise _fail("mount_setattr")


def attach(fd: int, target: str) -> None:
    """Put a detached clone at ``target`` of the own mount namespace; links in ``target`` are followed."""
    flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_SYMLINKS
    if _move_mount(NUMBERS["move_mount"], fd, b"", AT_FDCWD, os.fsencode(target), flags) < 0:
        raise _fail(f"move_mount at {target}")


def move(source: bytes, target: bytes) -> None:
    """Move what is mounted at ``source`` to ``target``, with all that is mounted in it; no links are followed."""
    if _move_mount(NUMBERS["move_mount"], AT_FDCWD, source, AT_FDCWD, target, 0) < 0:
        raise _fail(f"move_mount {os.fsdecode(source)}")


def open_resolved(directory: int, path: str, flags: int, mode: int, resolve: int) -> int:
    """openat2(2), close-on-exec. Raises OSError with the errno of the refusal."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode if flags & os.O_CREAT else 0, resolve)
    fd = _openat2(NUMBERS["openat2"], directory, os.fsencode(path), ctypes.byref(how), 24)
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return fd


def set_capabilities(low: int) -> None:
    """The effective and permitted sets become ``low`` (a mask of capabilities below 32); nothing is inheritable."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # effective, permitted, inheritable; the low and then the high 32 capabilities
    sets = (ctypes.c_uint32 * 6)(low, low, 0, 0, 0, 0)
    if _capset(NUMBERS["capset"], ctypes.byref(header), ctypes.byref(sets)) < 0:
        raise _fail("capset")


def landlock_abi() -> int:
    """The version of Landlock this kernel has; 0 where it has none."""
    return max(0, _landlock_create_ruleset(NUMBERS["landlock_create_ruleset"], None, 0, 1))


def prctl(option: int, value: int = 0, extra: int | None = None) -> None:
    """prctl(2) with one or two arguments; addresses are integers."""
    if _libc.prctl(option, value, extra, None, None):
        raise _fail(f"prctl {option}")


def knows_capability(number: int) -> bool:
    """Whether the kernel has a capability of this number (PR_CAPBSET_READ)."""
    return bool(_libc.prctl(23, number, None, None, None) >= 0)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def load_filter(program: bytes) -> None:
    """Load a seccomp filter (BPF), for this process and all it will start. Needs no_new_privs."""
    loaded = _Program(len(program) // 8, program)
    prctl(PR_SET_SECCOMP, 2, ctypes.addressof(loaded))


def set_name(name: bytes) -> None:
    """What ps shows: the process's name and, over the memory of its arguments and environment, nothing else."""
    held = ctypes.create_string_buffer(name)
    prctl(PR_SET_NAME, ctypes.addressof(held))
    with open("/proc/self/stat", "rb") as file:
        # proc(5), fields 48-51: arg_start, arg_end, env_start, env_end; counted after the name's closing bracket.
        fields = file.read().rpartition(b")")[2].split()[45:49]
    start, end, env_start, env_end = (int(field) for field in fields)
    if env_end > env_start > 0:
        ctypes.memset(env_start, 0, env_end - env_start)
    if end > start > 0:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, name, min(len(name), end - start - 1))
