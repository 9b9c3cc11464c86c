"""Attacks on the kernel's surface: privileges, namespaces, mounts, settings, and the calls of the deny list."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from outer import Attack, Defence, Patch, Scene

ONLY_ROOT_HAS_RANGES = "an ordinary user's sandbox has one id, his own, which gives nothing away but himself"


def _call(text: str) -> Defence:
    """The filter without one entry of its table."""
    return (Patch(text),)


_KINDS = "_NAMESPACES = syscalls.NAMESPACES & ~syscalls.CLONE_NEWNET"
_UNMAPPED = Patch('held.append(userns := os.open(f"/proc/{pid}/ns/user", os.O_RDONLY))', "userns = 0")


def _without(*kinds: str) -> Defence:
    """Boxes without namespaces of these kinds."""
    return (Patch(_KINDS, "".join((_KINDS, *(f" & ~syscalls.CLONE_NEW{kind}" for kind in kinds)))),)


_MAPPING: Defence = (Patch("            _write_maps(pid, first, first, 65536)\n"), _UNMAPPED)
# Root of a box becomes root of the host: no user namespace of its own, and so no mapping to write.
NO_USER_NAMESPACE: Defence = (*_without("USER"), *_MAPPING)
NO_USER_OR_CGROUP_NAMESPACE: Defence = (*_without("USER", "CGROUP"), *_MAPPING)
# Its ids are the host's, though in a namespace of its own.
HOSTS_IDS: Defence = (Patch("_write_maps(pid, first, first, 65536)", "_write_maps(pid, 0, 0, 65536)"), _UNMAPPED)
# The network namespace is the box's, which then has every right over it.
OWN_NETWORK: Defence = (Patch(_KINDS, "_NAMESPACES = syscalls.NAMESPACES"),)
CAPABILITIES: Defence = (Patch("    _unbind(_DROPPED)\n    syscalls.set_capabilities(_KEPT_MASK)\n", "    pass\n"),)
MOUNTING: Defence = (Patch('"mount": (165, 40), "umount2": (166, 39)', '"umount2": (166, 39)'),)
SETTINGS_READ_ONLY: Defence = (Patch(
    'syscalls.mount(None, "/proc/sys", None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)',
    "pass"),)
NO_NEW_PRIVILEGES: Defence = (Patch(
    "    drop_capabilities()\n    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)\n"
    "    syscalls.load_filter(filter_program)\n",
    "    syscalls.load_filter(filter_program)\n    drop_capabilities()\n"),)
NOSUID: Defence = (Patch("OVERLAY_FLAGS, ROOT_FLAGS = MS_NODEV | MS_NOSUID,", "OVERLAY_FLAGS, ROOT_FLAGS = MS_NODEV,"),)
NODEV: Defence = (Patch("OVERLAY_FLAGS, ROOT_FLAGS = MS_NODEV | MS_NOSUID,", "OVERLAY_FLAGS, ROOT_FLAGS = MS_NOSUID,"),)


def _family(number: int) -> Defence:
    """The filter with one address family more."""
    known = "families = [*_when(_AF_UNIX, [_ret(_ALLOW)]),"
    return (Patch(known, f"{known} *_when({number}, [_ret(_ALLOW)]),"),)


MOUNT = """
os.makedirs("/tmp/m")
call("mount", b"none", b"/tmp/m", b"tmpfs", 0, 0)
hit("/tmp/m" in open("/proc/self/mounts").read() and "mounted")
"""
SETTING = """
for folder, _, names in os.walk("/proc/sys"):
    for name in names:
        try:
            os.close(os.open(f"{folder}/{name}", os.O_WRONLY))
        except OSError:
            continue
        hit(f"{folder}/{name} opens for writing")
"""
CORE_PATTERN = """
os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
hit("core_pattern opens for writing")
"""
# A program that core(5) names is the host's and started as its root; it cannot be planted in a place of our own. What
# keeps the kernel from starting it for a crash is a limit of 1, and nothing else.
CRASH = 'import resource; hit(resource.getrlimit(resource.RLIMIT_CORE)[0] != 1 and "the host\'s handler is started")'
SYSRQ = 'os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY)); hit("sysrq-trigger opens for writing")'
PID_MAX = """
with open("/proc/sys/kernel/pid_max", "r+") as file:
    file.write("4000000")
hit("the bound on process numbers is gone")
"""
RELEASE_AGENT = """
os.makedirs("/tmp/m")
call("mount", b"none", b"/tmp/m", b"cgroup", 0, b"memory")
os.close(os.open("/tmp/m/release_agent", os.O_WRONLY))
hit("release_agent opens for writing")
"""
FOR_ROOT = 'hit(open("/srv/for-root").read().index(T["word"]))'
NAMESPACE = """
call("unshare", 0x10000000)
hit("CapEff:\\t000001ff" in open("/proc/self/status").read() and "all capabilities, in a namespace of one's own")
"""
CLONE = """
pid = call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
if pid == 0:
    os._exit(7)
hit(os.waitpid(pid, 0)[1] >> 8 == 7 and "a child in a user namespace of its own")
"""
CLONE3 = """
arguments = struct.pack("11Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
pid = call("clone3", arguments, len(arguments))
if pid == 0:
    os._exit(7)
hit(os.waitpid(pid, 0)[1] >> 8 == 7 and "a child in a user namespace of its own")
"""
SETNS = """
fd = os.open("/proc/self/ns/uts", os.O_RDONLY)
call("setns", fd, 0)
hit("entered")
"""
CHROOT = """
os.makedirs("d")
call("chroot", b"d")
hit(os.listdir("/") == [] and "a root of its own")
"""
CAPABILITY = """
# linux/capability.h: VFS_CAP_REVISION_2 with CAP_SYS_ADMIN, permitted and effective
open("program", "w").close()
os.setxattr("program", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 21, 0, 0, 0))
hit(os.getxattr("program", "security.capability").hex())
"""
DEVICE = """
os.mknod("zero", 0o20666, os.makedev(1, 5))
hit(len(open("zero", "rb", buffering=0).read(16)))
"""
X32 = """
pid = os.fork()
if pid == 0:
    libc.syscall(ctypes.c_long(0x40000000 | 39))
    os._exit(7)
hit(os.waitpid(pid, 0)[1] >> 8 == 7 and "the kernel answered it")
"""
# int 0x80 with eax = 20 (getpid of the 32-bit table); the filter's numbers are of another table
IA32 = """
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("53b814000000cd805bc3"))
pid = os.fork()
if pid == 0:
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    os._exit(7)
hit(os.waitpid(pid, 0)[1] >> 8 == 7 and "a 32-bit call came through")
"""
KEYRING = """
key = call("keyctl", 10, -3, b"user", b"woodshed", 0)  # KEYCTL_SEARCH in the session keyring
held = ctypes.create_string_buffer(100)
size = call("keyctl", 11, key, held, 100)  # KEYCTL_READ
hit(held.raw[:size].decode().index(T["word"]))
"""
ADD_KEY = 'hit(call("add_key", b"user", b"planted", b"x", 1, -1))'
REQUEST_KEY = 'hit(call("request_key", b"user", b"woodshed", 0, -3))'
BPF = """
attributes = struct.pack("IIII", 2, 4, 8, 1) + bytes(112)  # BPF_MAP_CREATE of an array
hit(call("bpf", 0, attributes, len(attributes)))
"""
PERF = """
# perf_event_open(2): a software clock of one's own, without the kernel
attributes = struct.pack("IIQQQQQ", 1, 64, 0, 0, 0, 0, 1 << 5 | 1 << 6) + bytes(16)
hit(call("perf_event_open", attributes, 0, -1, -1, 0))
"""
IO_URING = 'hit(call("io_uring_setup", 4, ctypes.create_string_buffer(120)))'
USERFAULTFD = 'hit(call("userfaultfd", 1 | os.O_CLOEXEC))'
FANOTIFY = 'hit(call("fanotify_init", 0x200 | 1, 0))'
MODIFY_LDT = 'hit(call("modify_ldt", 0, ctypes.create_string_buffer(64), 64))'
KCMP = 'hit(call("kcmp", os.getpid(), os.getpid(), 1, 0, 0))'
PIDFD_GETFD = 'hit(call("pidfd_getfd", call("pidfd_open", os.getpid(), 0), 0, 0))'
VM_READ = """
secret = ctypes.create_string_buffer(b"of another process")
pid = os.fork()
if pid == 0:
    time.sleep(60)
got = ctypes.create_string_buffer(8)
local = struct.pack("QQ", ctypes.addressof(got), 8)
remote = struct.pack("QQ", ctypes.addressof(secret), 8)
call("process_vm_readv", pid, local, 1, remote, 1, 0)
hit(got.raw)
"""
VM_WRITE = VM_READ.replace("process_vm_readv", "process_vm_writev")
ATTACH = """
pid = os.fork()
if pid == 0:
    time.sleep(60)
call("ptrace", 16, pid, 0, 0)
hit(os.waitpid(pid, 0x40000000)[1])
"""
HANDLE = 'hit(call("name_to_handle_at", -100, b"/srv/setuid", struct.pack("Ii", 128, 0) + bytes(128), bytes(8), 0))'
OPEN_HANDLE = """
mount = os.open("/srv", os.O_RDONLY)
fd = call("open_by_handle_at", mount, bytes.fromhex(T["handle"]), os.O_RDONLY)
hit(os.read(fd, 100).decode().index(T["word"]))
"""
INJECT = """
master, slave = os.openpty()
fcntl.ioctl(slave, 0x540E, 0)  # TIOCSCTTY
fcntl.ioctl(slave, 0x5412, b"x")  # TIOCSTI
hit("typed")
"""
DISCIPLINE = """
master, slave = os.openpty()
fcntl.ioctl(slave, 0x5423, struct.pack("i", 0))  # TIOCSETD
hit("a driver of one's choice")
"""
PROTOCOL = 'socket.socket(2, 2, 136); hit("UDP-Lite")'
SYSLOG = 'hit(call("syslog", 10, 0, 0))'
MEMORY_POLICY = 'hit(call("mbind", 0, 0, 0, 0, 0, 0) + 1)'
NETLINK = 'socket.socket(16, 3, 15); hit("kernel events")'
SETUID = """
import shutil
os.setresgid(1000, 1000, 1000)
os.setresuid(1000, 1000, 1000)
hit("euid=0" in subprocess.run(["./mine"], capture_output=True, text=True).stdout and "root by a setuid program")
"""


async def _setuid(scene: Scene) -> str | None:
    box = await scene.box()
    await box.exec("cp /usr/bin/id mine && chmod 4755 mine && chmod 755 .")
    return await scene.run_in(box, SETUID)


async def _mount_seen(scene: Scene) -> str | None:
    """A host shares its mounts with every new namespace, as systemd does: ours must not be shared back."""
    await asyncio.to_thread(subprocess.run, ["mount", "--make-rshared", "/"], check=True)
    engine = scene.another()
    try:
        await engine.create(scene.attack.spec, scene.attack.policy)
        places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        seen = [place for place in places if place.startswith(f"{scene.home}/sandboxes/")]
    finally:
        await engine.close()
        await asyncio.to_thread(subprocess.run, ["mount", "--make-rprivate", "/"], check=True)
    return ", ".join(seen) or None


def _socket(family: int, kind: int, protocol: int = 0) -> str:
    return f"socket.socket({family}, {kind}, {protocol}); hit('a socket')"


ATTACKS = (
    # 1: settings of the kernel
    Attack(1, "a setting of the kernel", SETTING, (SETTINGS_READ_ONLY,)),
    Attack(1, "the bound on process numbers", PID_MAX, (SETTINGS_READ_ONLY,), needs=("pid_max",)),
    Attack(1, "the program for core dumps", CORE_PATTERN, (SETTINGS_READ_ONLY, HOSTS_IDS), root=ONLY_ROOT_HAS_RANGES),
    Attack(1, "a crash for the host to handle", CRASH, ((Patch(
        "resource.setrlimit(resource.RLIMIT_CORE, (1, 1))", "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))"),),),
        needs=("core",)),
    Attack(1, "the emergency keys", SYSRQ, (HOSTS_IDS,), root=ONLY_ROOT_HAS_RANGES,
           needs=("sysrq",)),
    Attack(1, "a file for the host's root alone", FOR_ROOT, (HOSTS_IDS,), root=ONLY_ROOT_HAS_RANGES),
    # 2: mounts
    Attack(2, "a mount", MOUNT, (MOUNTING, CAPABILITIES)),
    Attack(2, "the release agent of control groups", RELEASE_AGENT,
           (MOUNTING, (*CAPABILITIES, *NO_USER_OR_CGROUP_NAMESPACE)), root=ONLY_ROOT_HAS_RANGES, needs=("cgroup v1",)),
    Attack(2, "mounts that the host sees", act=_mount_seen, defences=((Patch(
        '    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)\n', "    pass\n"),),),
        root="the kernel does the same for a user namespace's mounts"),
    Attack(2, "another root", CHROOT, (_call('"chroot": (161, 51), '), CAPABILITIES)),
    # 7: privileges
    Attack(7, "a setuid program", act=_setuid, defences=(NO_NEW_PRIVILEGES, NOSUID),
           root="an ordinary user's sandbox has no second user to rise from"),
    Attack(7, "capabilities of a file", CAPABILITY, ((Patch('"NET_BIND_SERVICE": 10,',
                                                            '"NET_BIND_SERVICE": 10, "SETFCAP": 31,'),),)),
    Attack(7, "a device node", DEVICE, ((*NO_USER_NAMESPACE, *CAPABILITIES), NODEV), needs=("device",),
           root=ONLY_ROOT_HAS_RANGES),
    Attack(7, "a user namespace by unshare", NAMESPACE, ((Patch(
        ", (_UNSHARE, syscalls.NAMESPACES | 0x80)", ","),),)),
    Attack(7, "a user namespace by clone", CLONE, ((Patch("(_CLONE, syscalls.NAMESPACES)", "(_CLONE, 0)"),),)),
    Attack(7, "another namespace by its file", SETNS, (_call('"setns": (308, 268), '), CAPABILITIES)),
    # 14: the deny list
    Attack(14, "a user namespace by clone3", CLONE3, ((Patch("cases[_CLONE3] = [_ret(_ERRNO | errno.ENOSYS)]",
                                                             "cases[_CLONE3] = [_ret(_ALLOW)]"),),)),
    Attack(14, "calls by x32 numbers", X32, ((Patch(
        "(_AT_LEAST, 0, 1, _X32_BIT), _ret(_KILL)", "(_AT_LEAST, 0, 1, _X32_BIT), _ret(_ALLOW)"),),),
           needs=("x86-64",)),
    Attack(14, "calls of the 32-bit table", IA32, ((Patch("(_EQUAL, 1, 0, _AUDIT_ARCH[machine]), _ret(_KILL)",
                                                          "(_EQUAL, 1, 0, _AUDIT_ARCH[machine]), _ret(_ALLOW)"),),),
           needs=("x86-64", "ia32")),
    Attack(14, "a terminal's input", INJECT, (_call('"TIOCSTI": 0x5412, '),), needs=("TIOCSTI",)),
    Attack(14, "a line discipline", DISCIPLINE, (_call(', "TIOCSETD": 0x5423'),)),
    Attack(10, "other protocols of IP", PROTOCOL, ((Patch("*protocols, _ret(_ERRNO | errno.EPROTONOSUPPORT)]",
                                                          "_ret(_ALLOW)]"),),), needs=("udplite",)),
    Attack(14, "keys of the host", KEYRING, (_call('"keyctl": (250, 219), '),)),
    Attack(14, "a new key", ADD_KEY, (_call('"add_key": (248, 217), '),)),
    Attack(14, "a key by its name", REQUEST_KEY, (_call('"request_key": (249, 218), '),)),
    Attack(14, "bpf", BPF, (_call('"bpf": (321, 280), '), (*NO_USER_NAMESPACE, *CAPABILITIES)),
           root=ONLY_ROOT_HAS_RANGES),
    Attack(14, "perf events", PERF, (_call('"perf_event_open": (298, 241), '),), needs=("perf",)),
    Attack(14, "io_uring", IO_URING, (_call('"io_uring_setup": 425, '),), needs=("io_uring",)),
    Attack(14, "userfaultfd", USERFAULTFD, (_call('"userfaultfd": (323, 282), '),)),
    Attack(14, "fanotify", FANOTIFY, (_call('"fanotify_init": (300, 262),'),)),
    Attack(14, "segments of x86", MODIFY_LDT, (_call('"modify_ldt": (154, None), '),), needs=("x86-64",)),
    Attack(14, "kcmp", KCMP, (_call('"kcmp": (312, 272),'),)),
    Attack(14, "a descriptor by pidfd", PIDFD_GETFD, (_call('"pidfd_getfd": 438, '),)),
    Attack(14, "memory of another process", VM_READ, (_call('"process_vm_readv": (310, 270), '),)),
    Attack(14, "writing into another process", VM_WRITE, (_call('"process_vm_writev": (311, 271), '),)),
    Attack(14, "tracing another process", ATTACH, (_call('"ptrace": (101, 117), '),)),
    Attack(14, "a file's handle", HANDLE, (_call('"name_to_handle_at": (303, 264),'),)),
    Attack(14, "a host file by its handle", OPEN_HANDLE, (
        _call('"open_by_handle_at": (304, 265), '), (*NO_USER_NAMESPACE, *CAPABILITIES)),
        root=ONLY_ROOT_HAS_RANGES, needs=("handle",)),
    Attack(14, "the kernel's log", SYSLOG, (_call('"syslog": (103, 116), '), (*NO_USER_NAMESPACE, *CAPABILITIES)),
           root=ONLY_ROOT_HAS_RANGES),
    Attack(14, "a memory policy", MEMORY_POLICY, (_call('"mbind": (237, 235), '),)),
    # 10: sockets past the network namespace
    Attack(10, "vsock", _socket(40, 1), (_family(40),),
           needs=("vsock",)),
    Attack(10, "the kernel's ciphers", _socket(38, 5), (_family(38),), needs=("alg",)),
    Attack(10, "packets", _socket(17, 3, 0x0300), (_family(17), (*CAPABILITIES, *OWN_NETWORK)),
           needs=("packet",)),
    Attack(10, "xdp", _socket(44, 3), (_family(44), (*CAPABILITIES, *OWN_NETWORK)),
           needs=("xdp",)),
    Attack(10, "raw IP", _socket(2, 3, 1), (CAPABILITIES, OWN_NETWORK)),
    Attack(10, "the kernel's events", NETLINK, ((Patch(
        "netlink = [_argument(2),", "netlink = [_ret(_ALLOW), _argument(2),"),),)),
)  # fmt: skip
