"""Attacks from inside a native sandbox. Each is also tried where its defence is absent, and works there."""
# ruff: noqa: ASYNC220, ASYNC221
# (Short control commands on the host, while nothing else runs in the loop.)

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.inside import confine, syscalls

ROOT = os.geteuid() == 0
CALLS = confine.denied(syscalls.MACHINE)
HARMLESS = (
    "keyctl", "add_key", "io_uring_setup", "process_vm_readv", "kcmp", "mbind", "set_mempolicy",
    "name_to_handle_at", "pidfd_getfd", "lookup_dcookie", "clock_adjtime",
)  # fmt: skip
"""Calls that do nothing when made with zeros; the others are tried only inside."""

# Prints what each attack got: "hit", or the name of the error. Runs inside with all calls, outside with harmless ones.
SCRIPT = r"""
import ctypes, errno, fcntl, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
calls, machine = json.loads(sys.argv[1]), os.uname().machine
own = {"x86_64": {"unshare": 272, "clone": 56}, "aarch64": {"unshare": 97, "clone": 220}}[machine]

def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments))
    return "hit" if result >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")

def apart(attack):
    # In a child: an attack that works must not change what the next one finds.
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = attack()
        except OSError as error:
            answer = errno.errorcode.get(error.errno, "?")
        os.write(writer, str(answer).encode())
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 1000).decode()
    os.close(reader)
    status = os.waitpid(pid, 0)[1]
    return answer or f"signal {os.WTERMSIG(status)}"

def family(*arguments):
    return lambda: socket.socket(*arguments) and "hit"

def inject():
    master, slave = os.openpty()
    os.setsid()
    fcntl.ioctl(slave, 0x540E, 0)  # TIOCSCTTY
    fcntl.ioctl(slave, 0x5412, b"x")  # TIOCSTI
    return "hit"

def device():
    os.mknod("device-node", 0o20600, os.makedev(1, 1))
    os.unlink("device-node")
    return "hit"

found = {name: apart(lambda: call(number, 0, 0, 0, 0, 0, 0)) for name, number in calls.items()}
for flag, name in ((0x10000000, "user"), (0x20000, "mnt"), (0x40000000, "net"), (0x80, "time")):
    found[f"unshare {name}"] = apart(lambda: call(own["unshare"], flag))
found["clone user"] = apart(lambda: call(own["clone"], 0x10000000 | 17, 0, 0, 0, 0))
found["clone3"] = apart(lambda: call(435, 0, 0))
found["trace me"] = apart(lambda: call(calls["ptrace"], 0) if "ptrace" in calls else "untried")
found["terminal injection"] = apart(inject)
found["device node"] = apart(device)
found["vsock"], found["alg"] = apart(family(40, 1)), apart(family(38, 5))
found["packet"], found["raw"] = apart(family(17, 3)), apart(family(2, 3, 1))
found["audit netlink"] = apart(family(16, 3, 9))
found["route netlink"], found["inet"], found["unix"] = apart(family(16, 3, 0)), apart(family(2, 1)), apart(family(1, 1))
if machine == "x86_64":
    found["x32"] = apart(lambda: call(0x40000000 | 39))
found["fds"] = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1]
print(json.dumps(found))
"""


@pytest.fixture
async def engine(shed_home: Path, images: Images) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


@pytest.fixture
async def box(engine: NativeEngine) -> NativeSandbox:
    return await engine.create(EnvironmentSpec(), SandboxPolicy())


async def inside(box: NativeSandbox, *names: str) -> dict[str, Any]:
    calls = {name: CALLS[name] for name in names or CALLS}
    result = await box.exec(["python3", "-c", SCRIPT, json.dumps(calls)])
    assert result.exit_code == 0, result
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def outside(*names: str) -> dict[str, Any]:
    calls = json.dumps({name: CALLS[name] for name in names})
    done = subprocess.run([sys.executable, "-c", SCRIPT, calls], capture_output=True, check=True, cwd="/tmp")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def test_denied_calls_are_refused_by_the_filter(box: NativeSandbox) -> None:
    """Every call of the deny list gives EPERM inside, whatever its arguments; outside the same calls get further."""
    found = await inside(box)
    assert {name: found[name] for name in CALLS} == dict.fromkeys(CALLS, "EPERM")
    control = outside(*HARMLESS)
    assert all(control[name] != "EPERM" for name in HARMLESS), control


async def test_no_new_namespaces_terminals_devices_or_odd_sockets(box: NativeSandbox) -> None:
    """What depends on arguments is refused too, and what programs need still works."""
    found = await inside(box, "ptrace")
    expected = {
        "unshare user": "EPERM", "unshare mnt": "EPERM", "unshare net": "EPERM", "unshare time": "EPERM",
        "clone user": "EPERM", "clone3": "ENOSYS", "trace me": "EPERM", "terminal injection": "EPERM",
        "device node": "EPERM", "vsock": "EAFNOSUPPORT", "alg": "EAFNOSUPPORT", "packet": "EAFNOSUPPORT",
        "raw": "EPERM", "audit netlink": "EPROTONOSUPPORT", "route netlink": "hit", "inet": "hit", "unix": "hit",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    if syscalls.MACHINE == "x86_64":
        assert found["x32"] == "signal 31"
    control = outside("ptrace")
    assert control["unshare user"] == control["trace me"] == "hit", control
    assert control["clone user"].startswith("hit"), "parent and child both answer"
    assert control["clone3"] != "ENOSYS"


async def test_commands_hold_three_descriptors(box: NativeSandbox) -> None:
    """Of all our files and sockets a command gets standard input, output and error."""
    assert (await inside(box, "kcmp"))["fds"] == [0, 1, 2]


async def test_privileges_are_dropped_for_good(box: NativeSandbox) -> None:
    """Commands have eight capabilities at most, no_new_privs and the filter; a setuid program gains nothing."""
    result = await box.exec("cat /proc/self/status")
    status = dict(line.split(":\t", 1) for line in result.stdout.decode().splitlines() if ":\t" in line)
    kept = sum(1 << number for number in confine.KEPT_CAPABILITIES.values())
    assert int(status["CapBnd"], 16) == int(status["CapPrm"], 16) == int(status["CapEff"], 16) == kept
    assert (int(status["CapInh"], 16), int(status["CapAmb"], 16)) == (0, 0)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    mapping = (await box.exec("cat /proc/self/uid_map")).stdout.split()
    assert mapping[0] == b"0"
    assert int(mapping[1]) == (int(mapping[1]) if ROOT else 0)
    assert len((await box.exec("cat /proc/self/uid_map")).stdout.splitlines()) == 1


@pytest.mark.skipif(not ROOT, reason="an ordinary user's sandbox has one user")
async def test_root_inside_is_nobody_outside(box: NativeSandbox) -> None:
    """The box's ids lie in a range of their own; a user of the box has no capability at all."""
    first = int((await box.exec("cat /proc/self/uid_map")).stdout.split()[1])
    assert first >= 0x70000000
    status = (await box.exec("cat /proc/self/status; touch x; id -u", user=1000)).stdout.decode()
    assert "CapEff:\t0000000000000000" in status
    assert status.endswith("1000\n")
    assert (await box.exec("test -e x")).exit_code != 0


async def test_host_files_are_out_of_reach(box: NativeSandbox, shed_home: Path, tmp_path: Path) -> None:
    """No path of the host but its /usr and Python is there; what of /etc is there holds no secret."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    hidden = ["/etc/shadow", "/etc/ssh", "/etc/ssl/private", "/var/lib/dpkg", "/sys/kernel", "/boot", "/lost+found"]
    for path in (secret, tmp_path, shed_home, *hidden):
        assert (await box.exec(["test", "-e", str(path)])).exit_code == 1, path
    assert secret.exists()
    mounts = (await box.exec("cat /proc/self/mountinfo /proc/self/mounts")).stdout.decode()
    assert str(shed_home) not in mounts
    assert (await box.exec("touch /usr/x || touch /usr/lib/x")).exit_code != 0


async def test_host_kernel_settings_cannot_be_written(box: NativeSandbox) -> None:
    """Not one file of /proc/sys opens for writing, nor do the other levers of /proc; kernel addresses are hidden."""
    script = (
        "find /proc/sys /proc/irq /proc/fs /proc/bus /proc/sysrq-trigger /proc/mtrr -type f 2>/dev/null |"
        " while read f; do (: >>$f) 2>/dev/null && echo $f; done; true"
    )
    assert (await box.exec(script)).stdout == b""
    for path in ("/proc/kcore", "/proc/kmsg", "/proc/kallsyms", "/proc/keys", "/proc/timer_list", "/proc/1/mem"):
        assert (await box.exec(f"head -c 100 {path} 2>/dev/null")).stdout == b"", path
    assert (await box.exec("ls -A /sys")).stdout == b""
    if ROOT:
        assert os.access("/proc/sys/kernel/core_pattern", os.W_OK), "the control: root of the host may"


@pytest.fixture
def listeners() -> Iterator[tuple[int, str]]:
    """A TCP port on the host's loopback, and an abstract unix socket."""
    name = f"\0woodshed-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(name)
        unix.listen()
        yield tcp.getsockname()[1], name


async def test_the_host_network_is_out_of_reach(box: NativeSandbox, listeners: tuple[int, str]) -> None:
    """The host's loopback and abstract sockets cannot be connected to from inside; from outside they can."""
    port, name = listeners
    script = (
        "import socket,sys\n"
        "inet, unix = socket.AF_INET, socket.AF_UNIX\n"
        "for kind, address in ((inet, ('127.0.0.1', int(sys.argv[1]))), (unix, '\\0' + sys.argv[2]),"
        " (inet, ('169.254.169.254', 80)), (inet, ('1.1.1.1', 53))):\n"
        "    with socket.socket(kind) as s:\n"
        "        s.settimeout(2)\n"
        "        print('hit' if not s.connect_ex(address) else 'refused')\n"
        "print(*(name for _, name in socket.if_nameindex()))\n"
    )
    found = (await box.exec(["python3", "-c", script, str(port), name[1:]])).stdout.split()
    assert found == [b"refused"] * 4 + [b"lo"]
    own = "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())"
    assert (await box.exec(["python3", "-c", own])).exit_code == 0, "a box's own loopback works"
    control = subprocess.run([sys.executable, "-c", script, str(port), name[1:]], capture_output=True, check=True)
    assert control.stdout.split()[:2] == [b"hit", b"hit"]


async def test_host_processes_are_not_seen(box: NativeSandbox) -> None:
    """/proc inside lists the box's own processes alone; outside, the box's command is an ordinary process."""
    mark = f"{os.getpid()}.125"
    with subprocess.Popen(["sleep", mark]) as process:
        try:
            seen = (await box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout.decode()
            assert mark not in seen
            assert mark in subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True).stdout
        finally:
            process.kill()
    pids = [int(entry.name) for entry in await box.list("/proc") if entry.name.isdigit()]
    assert pids == [1]


async def test_the_first_process_keeps_its_secrets(box: NativeSandbox, shed_home: Path) -> None:
    """PID 1 shows no path, argument or variable of the host, and its memory and files do not open."""
    shown = await box.exec("tr '\\0' ' ' </proc/1/cmdline; cat /proc/1/comm /proc/1/status")
    for word in ("python", str(shed_home), "woodshed/", os.environ.get("HOME", "/nowhere")):
        assert word.encode() not in shown.stdout, word
    for path in ("environ", "mem", "maps", "stack", "syscall", "auxv"):
        assert (await box.exec(f"head -c 10 /proc/1/{path}")).exit_code != 0, path
    for path in ("fd", "root", "cwd", "exe", "ns/mnt"):
        assert (await box.exec(f"readlink /proc/1/{path} || ls /proc/1/{path}/")).exit_code != 0, path
    assert (await box.exec("cat /proc/self/environ >/dev/null")).exit_code == 0, "the control: one's own does"


async def test_the_first_process_cannot_be_ended_or_stopped(box: NativeSandbox) -> None:
    """No signal from inside ends or stops PID 1; the box works on."""
    await box.exec("for s in 1 2 3 6 9 11 13 14 15 19 20 24 25 31; do kill -$s 1; done")
    assert (await box.exec("echo well")).stdout == b"well\n"


async def test_the_first_process_cannot_be_limited(box: NativeSandbox) -> None:
    """No limit can be set on PID 1, which has the ids of the box's root: one on CPU time would kill it."""
    limit = "import resource, sys; resource.prlimit(int(sys.argv[1]), resource.RLIMIT_CPU, (1, 1))"
    assert (await box.exec(["python3", "-c", limit, "0"])).exit_code == 0, "the control: one's own can be set"
    for _ in range(2):
        assert b"PermissionError" in (await box.exec(["python3", "-c", limit, "1"])).stderr
    assert (await box.exec("ulimit -t 5; ulimit -t")).stdout == b"5\n"


async def test_a_working_directory_does_not_lead_out(box: NativeSandbox) -> None:
    """A cwd through the descriptors or the root of any process is refused or stays inside (CVE-2024-21626)."""
    for number in range(3, 20):
        assert (await box.exec("pwd", cwd=f"/proc/self/fd/{number}")).exit_code == 126
    assert (await box.exec("ls /", cwd="/proc/self/root")).stdout == (await box.exec("ls /")).stdout
    assert (await box.exec("pwd -P; ls", cwd="/../../..")).stdout.startswith(b"/\n")


async def test_a_fork_bomb_is_contained(engine: NativeEngine) -> None:
    """A bomb stays within the process limit, ends at its timeout, and the box is usable after kill_all."""
    box = await engine.create(EnvironmentSpec(), SandboxPolicy(limits=Limits(pids=100)))
    other = await engine.create(EnvironmentSpec(), SandboxPolicy())
    result = await box.exec("bomb() { bomb | bomb & }; bomb; sleep 600", timeout_s=1)
    assert result.timed_out
    await box.start("bomb() { bomb | bomb & }; bomb; sleep 600")
    assert (await other.exec("echo well")).stdout == b"well\n"
    await box.kill_all()
    assert [entry.name for entry in await box.list("/proc") if entry.name.isdigit()] == ["1"]
    assert (await box.exec("echo well")).stdout == b"well\n"


@pytest.mark.skipif(not ROOT, reason="needs root: an ordinary user's setuid file gives away nothing but himself")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing: apt install util-linux")
async def test_a_setuid_file_made_inside_helps_nobody_outside(box: NativeSandbox, tmp_path: Path) -> None:
    """On disk it is root's and setuid; no user of the host can reach it. Where they can reach a copy, it works."""
    await box.exec("cp /usr/bin/id mine && chmod 4755 mine")
    made = box.world.folder / "u" / "workspace" / "mine"
    assert made.stat().st_mode & 0o7777 == 0o4755
    assert made.stat().st_uid == 0
    # Through a shell: setpriv itself still holds root's capabilities when it looks the program up.
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", "sh", "-c", 'exec "$0"']
    assert subprocess.run([*nobody, str(made)], capture_output=True).returncode != 0
    control = Path("/var/tmp") / f"woodshed-control-{os.getpid()}"  # public, unlike tmp_path
    try:
        shutil.copy(made, control)
        control.chmod(0o4755)
        shown = subprocess.run([*nobody, str(control)], capture_output=True, text=True)
        assert "euid=0" in shown.stdout
    finally:
        control.unlink()
    changes = await box.changes(_Sink())
    assert "/workspace/mine: setuid" in changes.refused


class _Sink:
    def put(self, content: Any) -> str:
        return "0" * 64

    def open(self, sha256: str) -> Any:
        raise NotImplementedError


async def test_two_engines_of_one_machine_share_no_ids(shed_home: Path, images: Images, tmp_path: Path) -> None:
    """Two engines at once, as two processes would be, give their boxes different user ids."""
    engines = [NativeEngine(shed_home, images=images), NativeEngine(shed_home, images=images)]
    try:
        boxes = [await engine.create(EnvironmentSpec(), SandboxPolicy()) for engine in engines for _ in range(2)]
        maps = {(await box.exec("cat /proc/self/uid_map")).stdout for box in boxes}
        assert len(maps) == (4 if ROOT else 1)
    finally:
        for engine in engines:
            await engine.close()


def test_the_filter_knows_both_machines() -> None:
    """The program builds for x86-64 and aarch64 from one table, and for nothing else."""
    programs = {machine: confine.program(machine) for machine in ("x86_64", "aarch64")}
    assert all(len(program) % 8 == 0 and len(program) // 8 < 4096 for program in programs.values())
    assert len(confine.denied("aarch64")) >= len(confine.denied("x86_64")) - 8
    with pytest.raises(KeyError):
        confine.program("riscv64")
