"""What user commands may not do: capabilities, no_new_privs and a seccomp deny list, applied once in PID 1.

Everything a sandbox runs is a child of PID 1 and inherits all three, so an exec costs none of it again.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence

from woodshed.sandbox.native.inside import syscalls

# include/uapi/linux/capability.h: what root of a box needs to install and own files, and to change user. No SETPCAP,
# MKNOD, NET_RAW, SYS_CHROOT, SETFCAP, AUDIT_WRITE, which Docker also leaves.
KEPT_CAPABILITIES = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
    "NET_BIND_SERVICE": 10,
}
_SETPCAP = 8
"""PID 1's own, to empty the bounding set of other users' commands. No command can have it: no bounding set holds it."""
_KEPT_MASK = sum(1 << capability for capability in (*KEPT_CAPABILITIES.values(), _SETPCAP))
_NOROOT_LOCKED = 1 | 2  # include/uapi/linux/securebits.h: user 0 gains nothing by an exec, for good

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
# Same number on every machine (Linux 5.1 and later).
_DENIED_COMMON = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "mount_setattr": 442,
    "quotactl_fd": 443, "open_tree_attr": 467,
}
# (x86-64, aarch64); None where the machine has no such call.
_DENIED: dict[str, tuple[int, int | None]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "userfaultfd": (323, 282), "bpf": (321, 280), "perf_event_open": (298, 241), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60), "ioperm": (173, None), "iopl": (172, None),
    "modify_ldt": (154, None), "uselib": (134, None), "sysfs": (139, None), "ustat": (136, None),
    "clock_settime": (227, 112), "settimeofday": (164, 170), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "nfsservctl": (180, 42), "lookup_dcookie": (212, 18), "vhangup": (153, 58), "fanotify_init": (300, 262),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "mbind": (237, 235), "set_mempolicy": (238, 237),
}
# Of a sealed box: files that no mount holds, and so neither noexec nor Landlock reaches. ENOSYS: programs know others.
_UNMOUNTED: dict[str, tuple[int, int]] = {"memfd_create": (319, 279), "memfd_secret": (447, 447)}
# What seems to succeed where a box has one user alone.
_OWNERS: dict[str, tuple[int | None, int | None]] = {
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "setuid": (105, 146),
    "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143), "setgroups": (116, 159),
    "setresuid": (117, 147), "setresgid": (119, 149), "setfsuid": (122, 151), "setfsgid": (123, 152),
}
# Calls whose arguments decide.
_CLONE, _UNSHARE, _IOCTL, _SOCKET, _PRLIMIT = (56, 220), (272, 97), (16, 29), (41, 198), (302, 261)
_CLONE3 = 435
# kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo: the first argument is whose.
_SIGNALS = ((62, 129), (200, 130), (234, 131), (129, 138), (297, 240))
_PIDFD_SEND_SIGNAL, _FCNTL = 424, (72, 25)
_F_SETOWN, _F_SETOWN_EX = 8, 15  # include/uapi/asm-generic/fcntl.h
_SETTING_OWNERS = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP: include/uapi/asm-generic/sockios.h
# Typing for another, what consoles can do, and line disciplines: drivers loaded for whoever asks.
_REFUSED_OF_TERMINALS = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCSETD": 0x5423}
_PROTOCOLS = (0, 1, 6, 17, 58)
"""Of IP sockets: what comes of itself, ICMP, TCP, UDP, ICMPv6. For others (sctp, l2tp …) drivers would be loaded."""
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16

# include/uapi/linux/bpf_common.h and seccomp.h
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; argument n lies at 16 + 8n, low half first

Instruction = tuple[int, int, int, int]
_FEW = 4


def denied(machine: str) -> dict[str, int]:
    """The calls refused whatever their arguments, with their numbers on ``machine``."""
    column = 0 if machine == "x86_64" else 1
    own = {name: pair[column] for name, pair in _DENIED.items()}
    return _DENIED_COMMON | {name: number for name, number in own.items() if number is not None}


def program(machine: str) -> bytes:
    """The filter as BPF. Unknown machines are refused (KeyError): a wrong table would protect nothing.

    A foreign architecture or an x32 call kills; clone3 is ENOSYS, as its flags cannot be read, and libc falls back.
    """
    column = 0 if machine == "x86_64" else 1
    refuse, code = _ERRNO | errno.EPERM, [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, _AUDIT_ARCH[machine]), _ret(_KILL)]
    code.append((_LOAD, 0, 0, _NUMBER))
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32_BIT), _ret(_KILL)]
    cases = {number: [_ret(refuse)] for number in denied(machine).values()}
    cases[_CLONE3] = [_ret(_ERRNO | errno.ENOSYS)]
    # The low byte of clone's flags is a signal number; in unshare's, 0x80 is CLONE_NEWTIME.
    for call, flags in ((_CLONE, syscalls.NAMESPACES), (_UNSHARE, syscalls.NAMESPACES | 0x80)):
        cases[call[column]] = [_argument(0), (_ANY_BIT, 0, 1, flags), _ret(refuse), _ret(_ALLOW)]
    terminals = [body for request in _REFUSED_OF_TERMINALS.values() for body in _when(request, [_ret(refuse)])]
    cases[_IOCTL[column]] = [_argument(1), *terminals, _ret(_ALLOW)]
    # Limits of one's own alone. PID 1 has the same ids as the box's root, and a CPU limit set on it would kill it.
    cases[_PRLIMIT[column]] = [_argument(0), *_when(0, [_ret(_ALLOW)]), _ret(refuse)]
    # Address families: vsock reaches the hypervisor past the network namespace; alg, packet, xdp … are attack surface.
    # NETLINK_ROUTE alone; no audit looks like a kernel without it, or useradd and its like would give up.
    netlink = [_argument(2), *_when(0, [_ret(_ALLOW)]), _ret(_ERRNO | errno.EPROTONOSUPPORT)]
    protocols = [body for number in _PROTOCOLS for body in _when(number, [_ret(_ALLOW)])]
    internet = [_argument(2), *protocols, _ret(_ERRNO | errno.EPROTONOSUPPORT)]
    families = [*_when(_AF_UNIX, [_ret(_ALLOW)]), *_when(_AF_INET, internet), *_when(_AF_INET6, internet)]
    cases[_SOCKET[column]] = [_argument(0), *families, *_when(_AF_NETLINK, netlink),
                              _ret(_ERRNO | errno.EAFNOSUPPORT)]
    return _packed([*code, *_found(sorted(cases.items()))])


def sealing_program(machine: str) -> bytes:
    """A second filter, upon :func:`program`, which judges the machine: there are no files but those of mounts."""
    code = [(_LOAD, 0, 0, _NUMBER)]
    for pair in _UNMOUNTED.values():
        code += _when(pair[0 if machine == "x86_64" else 1], [_ret(_ERRNO | errno.ENOSYS)])
    return _packed([*code, _ret(_ALLOW)])


def guarding_program(machine: str) -> bytes:
    """A second filter, for a kernel that does not spare a PID 1 what comes from inside (gVisor's): nothing signals it.

    Neither directly nor as the owner of a descriptor that has something to tell (fcntl(2), F_SETOWN).
    """
    column = 0 if machine == "x86_64" else 1
    refuse, first = _ret(_ERRNO | errno.EPERM), 1
    code = [(_LOAD, 0, 0, _NUMBER)]
    for call in _SIGNALS:
        code += _when(call[column], [_argument(0), *_when(first, [refuse]), _ret(_ALLOW)])
    code += _when(_PIDFD_SEND_SIGNAL, [refuse])
    owner = [_argument(2), *_when(first, [refuse]), *_when(0xFFFFFFFF, [refuse]), _ret(_ALLOW)]
    code += _when(_FCNTL[column], [_argument(1), *_when(_F_SETOWN, owner), *_when(_F_SETOWN_EX, [refuse]),
                                   _ret(_ALLOW)])
    owners = [body for request in _SETTING_OWNERS for body in _when(request, [refuse])]
    code += _when(_IOCTL[column], [_argument(1), *owners, _ret(_ALLOW)])
    return _packed([*code, _ret(_ALLOW)])


def lenient_program(machine: str) -> bytes:
    """A second filter for a box of one user, in which an image is built: changes of owner and user seem to succeed.

    Package managers insist on both. Nothing is gained by it: the calls do nothing at all, and so everything stays
    user 0's. As Charliecloud does ("root emulation via seccomp"). setresuid and the like are told apart by nothing:
    who asks afterwards sees user 0.
    """
    code = [(_LOAD, 0, 0, _NUMBER)]
    for pair in _OWNERS.values():
        number = pair[0 if machine == "x86_64" else 1]
        code += _when(number, [_ret(_ERRNO)]) if number is not None else []
    return _packed([*code, _ret(_ALLOW)])


def _found(cases: Sequence[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """What to do with the number that is loaded: the case of that number, which returns; else it is allowed.

    By halves, not one after the other: when a filter is loaded the kernel runs it for every call there is, to know
    which it always allows (seccomp_cache_prepare), and every box loads it.
    """
    if len(cases) <= _FEW:
        return [*(step for number, body in cases for step in _when(number, body)), _ret(_ALLOW)]
    middle = len(cases) // 2
    low, high = _found(cases[:middle]), _found(cases[middle:])
    return [(_AT_LEAST, len(low), 0, cases[middle][0]), *low, *high]


def _packed(code: Sequence[Instruction]) -> bytes:
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def _ret(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)


def _argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENT + 8 * index)


def _when(value: int, body: Sequence[Instruction]) -> list[Instruction]:
    return [(_EQUAL, 0, len(body), value), *body]


def _last() -> int:
    try:
        with open("/proc/sys/kernel/cap_last_cap", "rb") as file:  # noqa: PTH123 (no pathlib in this process)
            return int(file.read())
    except OSError:
        pass  # /proc is another's, or the kernel is not Linux itself (gVisor)
    last = 40  # CAP_CHECKPOINT_RESTORE, of Linux 5.9
    while last and not syscalls.knows_capability(last):
        last -= 1
    return last


_DROPPED = [capability for capability in range(_last() + 1) if capability not in KEPT_CAPABILITIES.values()]


def _unbind(capabilities: Iterable[int]) -> None:
    for capability in capabilities:
        syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)


def drop_capabilities() -> None:
    """No command has more than :data:`KEPT_CAPABILITIES`, whatever it starts; nothing can be regained."""
    _unbind(_DROPPED)
    syscalls.set_capabilities(_KEPT_MASK)


def empty_bounding_set() -> None:
    """Nothing that this process starts gets a capability by being started; what it has itself it keeps."""
    _unbind(KEPT_CAPABILITIES.values())


def deprive_root() -> None:
    """User 0 of the box has no capability either. This process keeps its own, to serve files and to end commands."""
    empty_bounding_set()
    syscalls.prctl(syscalls.PR_SET_SECUREBITS, _NOROOT_LOCKED)


def confine(filter_program: bytes) -> None:
    """Drop capabilities, set no_new_privs and load the filter, for this process and all it will start."""
    drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.load_filter(filter_program)
