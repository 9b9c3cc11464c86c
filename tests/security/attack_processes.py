"""Attacks by processes: on the first one, on the engine's patience, on what the machine has, and by outliving us."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outer import PRELUDE, Attack, Defence, Patch, Scene, Swap
from woodshed.errors import SandboxDied
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.native import link
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.cgroups import Control, Groups
from woodshed.sandbox.native.output import Kept, Pipe

NATIVE = "woodshed.sandbox.native"
# The kernel clears it, too, for a process that changes its user; off means set.
MORE_CAPABILITIES: Defence = (Patch("(*KEPT_CAPABILITIES.values(), _SETPCAP))", "KEPT_CAPABILITIES.values())"),)
DUMPABLE: Defence = (Patch("prctl(syscalls.PR_SET_DUMPABLE, 0)", "prctl(syscalls.PR_SET_DUMPABLE, 1)"),)


async def _died(box: NativeSandbox) -> bool:
    try:
        await box.list("/")
    except SandboxDied:
        return True
    return False


def _alive(mark: str) -> str | None:
    """A process of the place that has ``mark`` as an argument of its own."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                return f"process {path.parent.name} lives"
    return None


# -- 3, 4: the first process -------------------------------------------------------------------------------------------

TRACE_ME = """
call("ptrace", 0, 0, 0, 0)
os.kill(os.getpid(), signal.SIGSTOP)
"""
MEMORY = """
first = next(line for line in open("/proc/1/maps") if " rw-p " in line).split("-")[0]
with open("/proc/1/mem", "rb", buffering=0) as memory:
    memory.seek(int(first, 16))
    hit(len(memory.read(100)))
"""
DESCRIPTORS = 'hit(any("socket:" in os.readlink("/proc/1/fd/" + fd) for fd in os.listdir("/proc/1/fd")))'
CHANNEL = """
pidfd = call("pidfd_open", 1, 0)
for number in range(3, 30):
    try:
        fd = call("pidfd_getfd", pidfd, number, 0)
        hit(socket.socket(fileno=fd).type == socket.SOCK_SEQPACKET and "the channel to the engine")
    except OSError:
        pass
"""
COMMAND_LINE = 'hit("native" in open("/proc/1/cmdline").read() and "a path of the host")'
SEEN = """
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        hit(T["mark"] in open(f"/proc/{pid}/cmdline").read().split("\\0") and f"process {pid} of the host")
    except OSError:
        pass
"""
PRIORITY = 'os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)); hit("the first process runs last")'
FIRST_TO_GO = """
with open("/proc/1/oom_score_adj", "w") as file:
    file.write("900")
hit(open("/proc/1/oom_score_adj").read().strip() == "900" and "the first process is killed first")
"""
LIMITED = "import resource; resource.prlimit(1, resource.RLIMIT_CPU, (1, 1)); hit('a limit on the first process')"


async def _trace_me(scene: Scene) -> str | None:
    """Our child is stopped, and we are its tracer: a status that no exit code is made of."""
    box = await scene.box()
    with suppress(SandboxDied, TimeoutError):
        await asyncio.wait_for(scene.run_in(box, TRACE_ME), 2)
    return "the box is dead" if await _died(box) else None


LEASE = """
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open("/tmp/program", os.O_RDONLY), 1024, fcntl.F_WRLCK)  # F_SETLEASE: who opens it waits for us
open("held", "w").close()
signal.pause()
"""


async def _hold_up(scene: Scene) -> str | None:
    """A child held up between its making and its program holds up the first process, which waits for that.

    Here by a lease on the program; SIGSTOP to everything at the right moment does the same.
    """
    box = await scene.box()
    await box.exec("cp /usr/bin/true /tmp/program")
    await box.start(["python3", "-c", PRELUDE + LEASE, "{\"calls\": 0}"])
    await box.exec("until test -e held; do sleep 0.02; done", timeout_s=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "_PATIENCE_S", 0.3)
        with suppress(TimeoutError):
            await asyncio.wait_for(box.exec(["/tmp/program"], timeout_s=0.1), 3)
        try:
            await asyncio.wait_for(box.kill_all(), 2)
        except TimeoutError:
            return "nothing ends any more"
    return None


# -- 8: bombs and daemons ----------------------------------------------------------------------------------------------

BOMB = """
made = 0
try:
    for made in range(500):
        if os.fork() == 0:
            signal.pause()
except OSError:
    pass
hit(made > 450 and f"{made} processes")
"""


async def _outlive_the_timeout(scene: Scene) -> str | None:
    box = await scene.box()
    await box.exec("(setsid sh -c \"trap '' TERM HUP INT; sleep 77.75; sleep 77.75\" &); sleep 60", timeout_s=0.4)
    for _ in range(50):  # the end of its own first command is told when all are killed, not when all are gone
        if _alive("77.75") is None:
            return None
        await asyncio.sleep(0.02)
    return _alive("77.75")


async def _outlive_the_sandbox(scene: Scene) -> str | None:
    box = await scene.box()
    first = box.pid
    await box.exec("(setsid sh -c \"trap '' TERM HUP INT; sleep 88.75; sleep 88.75\" &)")
    with suppress(TimeoutError):
        await asyncio.wait_for(box.close(), 1)
    got = _alive("88.75")
    if got is not None:
        os.kill(first, signal.SIGKILL)
    return got


# -- 9: using up -------------------------------------------------------------------------------------------------------

ALLOCATE = "held = bytearray(200 << 20); held[::4096] = b'x' * (len(held) // 4096); hit(len(held))"
FILL = """
with open(PATH, "wb", buffering=0) as file:
    for _ in range(32):
        file.write(bytes(1 << 20))
hit(os.stat(PATH).st_size == 32 << 20 and "32 MB")
"""
ENTRIES = """
for number in range(1000):
    open(f"/tmp/{number}", "w").close()
hit("1000 files")
"""
SPARSE = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open("large", "wb") as file:
    file.truncate(1 << 30)
hit("a file of 1 GB")
"""
OPEN_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
try:
    while len(held) < 800:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
hit(len(held) >= 800 and f"{len(held)} open files")
"""
# Slowly enough for whoever looks now and then.
FILL_SLOWLY = """
for number in range(8):
    with open(f"{number}", "wb") as file:
        file.write(os.urandom(4 << 20))
    time.sleep(0.25)
hit("32 MB")
"""
MANY_FILES = """
for number in range(4000):
    open(f"{number}", "w").close()
    if number % 400 == 0:
        time.sleep(0.25)
hit("4000 files")
"""
SEGMENTS = """
libc.shmat.restype = ctypes.c_void_p
while (segment := libc.shmget(0, 4 << 20, 0o1600)) >= 0:  # IPC_PRIVATE, IPC_CREAT
    ctypes.memset(libc.shmat(segment, None, 0), 1, 4 << 20)
"""
TERMINALS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
opened = 0
try:
    while opened < 600:
        os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
        opened += 1
except OSError:
    pass
hit(opened == 600 and "600 terminals")
"""
# All but thirty of a usual host's.
WATCHERS = """
for _ in range(98):
    libc.inotify_init1(0)
open("taken", "w").close()
signal.pause()
"""
SMALL = SandboxPolicy(limits=Limits(disk_mb=8, files=100))
POOR = SandboxPolicy(limits=Limits(memory_mb=64))


async def _fill_memory(scene: Scene) -> str | None:
    """Shared segments are charged and no process's: what is killed for them frees nothing. In the end PID 1 is."""
    box = await scene.box()
    with suppress(SandboxDied):
        for _ in range(8):
            await scene.run_in(box, SEGMENTS, timeout_s=5)
            await box.exec("head -c 60M /dev/zero >/tmp/fill", timeout_s=5)
    return "the box is dead" if await _died(box) else None


async def _use_up_watchers(scene: Scene) -> str | None:
    """All the inotify instances that its maker may have: then the host's own programs get none."""
    box = await scene.box()
    await box.start(["python3", "-c", PRELUDE + WATCHERS, "{\"calls\": 0}"])
    for _ in range(100):
        if (await box.exec("test -e taken")).exit_code == 0:
            break
        await asyncio.sleep(0.02)
    else:
        raise AssertionError("it does not start")
    libc, held = ctypes.CDLL(None, use_errno=True), list[int]()
    while len(held) < 40 and (fd := libc.inotify_init1(os.O_CLOEXEC)) >= 0:
        held.append(fd)
    for fd in held:
        os.close(fd)
    return f"{len(held)} are left" if len(held) < 40 else None


def _nothing(*_: Any) -> None:
    return None


def _without_memory(control: Control, instance: str, box: str, limits: Limits) -> Groups:
    return _make(control, instance, box, limits.model_copy(update={"memory_mb": None}))


_make = Control.make
_NEVER, _BOUNDLESS = property(lambda _: False), property(lambda _: (1 << 60, 1 << 60))
# A group where there can be one, else a look now and then.
MEMORY_SIZES: Defence = (Patch("mode=1777,size={size_kb}k,", "mode=1777,"),)
FILE_SIZE: Defence = (Patch('    _lower(resource.RLIMIT_FSIZE, plan["file_bytes"])\n'),)
MEMORY_LIMIT: Defence = (
    Swap(f"{NATIVE}.cgroups:Control", "make", _without_memory), Swap(f"{NATIVE}.guard:Watched", "polls_memory", _NEVER))
DISK_LIMIT: Defence = (Swap(f"{NATIVE}.guard:Watched", "bounds", _BOUNDLESS),)


# -- 15: output and arguments ------------------------------------------------------------------------------------------


async def _flood(scene: Scene) -> str | None:
    box = await scene.box()
    result = await box.exec("head -c 30M /dev/zero", output_bytes=1000)
    return f"{len(result.stdout)} bytes" if len(result.stdout) > 1000 else None


class _Everything(Kept):
    """Output without a bound."""

    def __init__(self, limit: int) -> None:
        super().__init__(1 << 40)


async def _never_close(scene: Scene) -> str | None:
    box = await scene.box()
    started = time.monotonic()
    await box.exec("sleep 1.5 & echo well")
    return "waited for a descendant" if time.monotonic() - started > 1.4 else None


def _to_the_end(pipe: Pipe, loop: asyncio.AbstractEventLoop) -> int | None:
    """What communicate() of subprocess does: read until nobody holds the other end."""
    waiting = select.poll()
    waiting.register(pipe.fd, select.POLLIN)
    while waiting.poll(5000) and os.read(pipe.fd, 1 << 16):
        pass
    return None


async def _endless_arguments(scene: Scene) -> str | None:
    box = await scene.box()
    for argv, env in ((["echo", "x" * 3_000_000], {}), (["true"], {"X": "x" * 3_000_000}), (["\ud800"], {})):
        with suppress(SandboxDied):
            await box.exec(argv, env=env)
    return "the box is dead" if await _died(box) else None


# -- 17: variables for others ------------------------------------------------------------------------------------------


async def _variables_for_the_engine(scene: Scene) -> str | None:
    """Variables a task names, and those of whoever started us, stand before the fork server's Python as well."""
    folder = Path(scene.targets["fake"], "path")
    folder.mkdir(exist_ok=True)
    marker = folder / f"ran-{time.monotonic_ns()}"
    for name in ("sitecustomize", "usercustomize", "json", "ctypes"):
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')\nraise ImportError\n")
    variables = {"PYTHONPATH": str(folder), "PYTHONSTARTUP": str(folder / "json.py"), "PYTHONHOME": "",
                 "PYTHONINSPECT": "1", "BASH_ENV": str(folder / "json.py"), "LD_LIBRARY_PATH": str(folder)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        engine = scene.another()
        try:
            with suppress(Exception):  # one that loads what we planted may not come up
                box = await asyncio.wait_for(engine.create(EnvironmentSpec(env=variables), SandboxPolicy()), 5)
                await box.exec("true")
        finally:
            await asyncio.wait_for(engine.close(), 5)
    return "ran on the host" if marker.exists() else None


def _with_variables(argv: list[str], **options: Any) -> Any:
    options["env"] = dict(os.environ)
    return subprocess.Popen([word for word in argv if word not in ("-I", "-S")], **options)


LAX_PROCESS = SimpleNamespace(Popen=_with_variables, DEVNULL=subprocess.DEVNULL)

ATTACKS = (
    # 3, 4: the first process
    Attack(3, "a child that asks to be traced", act=_trace_me, defences=(
        (Patch('"ptrace": (101, 117), '),),
        (Patch("            if os.WIFSTOPPED(status):", "            if False:"),))),
    Attack(4, "memory of the first process", MEMORY, (DUMPABLE, MORE_CAPABILITIES)),
    Attack(4, "descriptors of the first process", DESCRIPTORS, (DUMPABLE, MORE_CAPABILITIES)),
    Attack(4, "the channel of the first process", CHANNEL, (
        DUMPABLE, MORE_CAPABILITIES, (Patch('"pidfd_getfd": 438, '),))),
    Attack(4, "the command line of the first process", COMMAND_LINE, ((Patch(
        '    syscalls.set_name(b"woodshed-box")\n'),),)),
    Attack(4, "processes of the host", SEEN, ((Patch(
        'syscalls.mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)',
        'syscalls.mount("/proc", "proc", None, MS_BIND | 16384)'),),)),
    Attack(4, "the first process as the first to go", FIRST_TO_GO, ((*DUMPABLE, Patch(
        '    syscalls.mount("/dev/null", "/proc/1/oom_score_adj", None, MS_BIND)\n')),)),
    Attack(4, "the first process's turn", PRIORITY, (MORE_CAPABILITIES,)),
    Attack(4, "a limit on the first process", LIMITED, ((Patch(
        "    cases[_PRLIMIT[column]] = [_argument(0), *_when(0, [_ret(_ALLOW)]), _ret(refuse)]\n"),),)),
    # 8: bombs and daemons
    Attack(8, "a fork bomb", BOMB, (
        (Patch('    _lower(resource.RLIMIT_NPROC, plan["pids"] + 1)  # and ourselves\n'),),
        (Patch('    _write("kernel/pid_max", plan["pid_max"])\n'),)),
           policy=SandboxPolicy(limits=Limits(pids=20)), needs=("pid_max",)),
    Attack(8, "a daemon that outlives its timeout", act=_outlive_the_timeout, defences=((Patch(
        "if leader in (pid, session) or own in marks or (own > self.last_mark and own != UNMARKED):",
        "if leader in (pid, session):"),),)),
    Attack(8, "a daemon that outlives its sandbox", act=_outlive_the_sandbox, defences=(
        (Swap(f"{NATIVE}.link", "signal", SimpleNamespace(pidfd_send_signal=_nothing, SIGKILL=9)),),
        (Patch("                if message is None:\n                    os._exit(0)\n",
               "                if message is None:\n                    poller.unregister(channel)\n"
               "                    continue\n"),))),
    Attack(8, "a first process held up", act=_hold_up, defences=((Swap(
        f"{NATIVE}.link:Link", "_free", _nothing),),)),
    # 9: using up
    Attack(9, "memory", ALLOCATE, (MEMORY_LIMIT,), policy=POOR),
    Attack(9, "a full disk", FILL_SLOWLY, (DISK_LIMIT,), policy=SMALL),
    Attack(9, "many files", MANY_FILES, (DISK_LIMIT,), policy=SMALL),
    Attack(9, "watchers of the whole host", act=_use_up_watchers, needs=("watchers",), defences=((
        Patch("        os.seteuid(first_id)\n        try:", "        try:"),
        Patch('    if plan.get("watchers"):\n', "    if False:\n")),)),
    Attack(9, "all terminals", TERMINALS, ((Patch(",mode=620,max=256", ",mode=620"),),)),
    Attack(9, "open files", OPEN_FILES, ((Patch(
        '    _lower(resource.RLIMIT_NOFILE, max(_LEAST_FILES, plan["open_files"]), soft=_SOFT_FILES)\n'),),),
        policy=SandboxPolicy(limits=Limits(open_files=100))),
    Attack(9, "memory of nobody", act=_fill_memory, defences=((Patch(
        "    settle(plan)\n    confine.confine(filter_program)\n",
        '    settle(plan)\n    [os.write(fd, b"0") for fd in groups]\n    confine.confine(filter_program)\n'),),),
        policy=POOR, needs=("cgroups",)),
    Attack(9, "a full /tmp", FILL.replace("PATH", '"/tmp/large"'), (MEMORY_SIZES, FILE_SIZE), policy=SMALL),
    Attack(9, "a full /dev/shm", FILL.replace("PATH", '"/dev/shm/large"'), (MEMORY_SIZES, FILE_SIZE), policy=SMALL),
    Attack(9, "entries of /tmp", ENTRIES, ((Patch("size={size_kb}k,nr_inodes={plan['files']}", "size={size_kb}k"),),),
           policy=SMALL),
    Attack(9, "one large file", SPARSE, (FILE_SIZE,), policy=SMALL),
    # 15: output and arguments
    Attack(15, "a flood of output", act=_flood, defences=((Swap(f"{NATIVE}.collected", "Kept", _Everything),),)),
    Attack(15, "output that never ends", act=_never_close, defences=((Swap(
        f"{NATIVE}.output:Pipe", "finish", _to_the_end),),)),
    Attack(15, "endless arguments", act=_endless_arguments, defences=((
        Patch("        except Exception as error:\n            # Whatever a caller sends",
              "        except EOFError as error:\n            # Whatever a caller sends"),
        Patch("        except Exception as error:\n            _complain(error, _stderr(message, fds))",
              "        except EOFError as error:\n            _complain(error, _stderr(message, fds))")),)),
    # 17: variables for others
    Attack(17, "variables for the engine's own programs", act=_variables_for_the_engine, defences=((Swap(
        f"{NATIVE}.forkserver", "subprocess", LAX_PROCESS),),)),
)  # fmt: skip

