"""The root of a box: an overlay of cloned layers, read-only binds, and private /dev, /proc, /tmp, /run, /dev/shm.

The fork server clones layers and binds (it can reach every host path, and as root it maps their owners); the box's
first process, already in its own namespaces, puts them together. No host path is ever looked up from inside.
"""
# ruff: noqa: PTH102, PTH110, PTH112, PTH211
# (This process stays small: neither pathlib nor contextlib is loaded in it.)
# ruff: noqa: S108
# (Paths of the box, not the host's shared ones.)

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import Any

from woodshed.sandbox.native.inside import syscalls
from woodshed.sandbox.native.inside.syscalls import (
    ATTR_NODEV,
    ATTR_NOSUID,
    ATTR_RDONLY,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REMOUNT,
)

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {
    "ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
# Readable by everybody in /proc, and the host's. What only the host's root may touch there (kcore, kmsg, sysrq-trigger,
# irq, bus …) needs no mask: no user of a box is that root. /proc/sys is read-only, for parts of it belong to the box's
# own namespaces.
_MASKED = [name for name in ("kallsyms", "keys", "latency_stats", "sched_debug") if os.path.exists(f"/proc/{name}")]
OVERLAY_FLAGS, ROOT_FLAGS = MS_NODEV | MS_NOSUID, MS_NODEV | MS_NOSUID | MS_NOEXEC | MS_RDONLY
"""What the root is mounted with, and what may be added to it later. statvfs(3) has the same bits."""
_OPTIONS = (("userxattr", ""), ("index", "off"), ("volatile", ""))
"""userxattr: works without privilege, so one layer serves root and user. volatile: what lies in a box need not survive
a power cut, and its end must not sync the host's disk."""
_TERMINALS = "newinstance,ptmxmode=0666,mode=620,max=256"
"""All boxes share what the host leaves to instances of devpts: kernel.pty.max less kernel.pty.reserve, 3,072."""
_STAGES = ("/tmp", "/run", "/mnt", "/var")


def make_dev(path: str) -> None:
    """A read-only /dev at ``path``, cloned for every box: device nodes, links, mount points for pts and shm."""
    syscalls.mount("tmpfs", path, "tmpfs", MS_NOSUID, "mode=755,size=64k,nr_inodes=64")
    for name in _DEVICES:
        os.close(os.open(f"{path}/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
        syscalls.mount(f"/dev/{name}", f"{path}/{name}", None, MS_BIND)
    for name, target in _LINKS.items():
        os.symlink(target, f"{path}/{name}")
    os.mkdir(f"{path}/pts")
    os.mkdir(f"{path}/shm")
    syscalls.mount(None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)


def clones(plan: dict[str, Any], dev: str, userns: int) -> list[int]:
    """Detached mounts for :func:`build`: /dev, the layers, the box's own directory, the binds.

    With a ``userns`` the layers' owners are mapped as in it, so that what lies on disk stays unshifted; the binds are
    not, so that root of a box is nobody special in the host's /usr.
    """
    made = [syscalls.tree(dev, recursive=True), *layer_clones(plan, userns)]
    for source, _ in plan["binds"]:
        # Recursive: a kernel refuses to uncover a directory below a submount in a less privileged namespace.
        made.append(fd := syscalls.tree(source, recursive=True))
        syscalls.set_attributes(fd, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, recursive=True)
    return made


def layer_clones(plan: dict[str, Any], userns: int, *, sealed: bool = False) -> list[int]:
    """Detached mounts for :func:`overlay`: the lower layers (``sealed``: read-only), and the box's own directory."""
    made = [syscalls.tree(path) for path in (*plan["lowers"], plan["upper"])]
    for index, fd in enumerate(made):
        attributes = ATTR_RDONLY if sealed and index < len(made) - 1 else 0
        if userns or attributes:
            syscalls.set_attributes(fd, attributes, userns=userns)
    return made


def build(plan: dict[str, Any], fds: Sequence[int]) -> None:
    """Make the box's root out of ``fds`` (from :func:`clones`) and move into it; the host's root is gone after."""
    dev, binds = fds[0], fds[1 + len(plan["lowers"]) + 1:]
    stage = next(path for path in _STAGES if os.path.isdir(path))
    cover(stage)
    os.chdir(stage)
    overlay(fds[1:len(fds) - len(binds)])
    if not stat.S_ISDIR(os.lstat("proc").st_mode):
        raise OSError("the image has no /proc directory")
    # Before pivot_root: a new proc may be mounted only where a full one is in sight.
    syscalls.mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    syscalls.pivot_root()
    syscalls.unmount(".")
    os.chdir("/")
    for fd, (_, target) in zip(binds, plan["binds"], strict=True):
        syscalls.attach(fd, target)
    syscalls.attach(dev, "/dev")
    syscalls.mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, _TERMINALS)
    own = plan.get("own_tmp")  # the image's, on disk
    for target, size_kb in (("/dev/shm", plan["shm_kb"]), *(() if own else (("/tmp", plan["tmp_kb"]),))):
        options = f"mode=1777,size={size_kb}k,nr_inodes={plan['files']}"
        syscalls.mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options)
    if os.path.isdir("/run") and not own:
        syscalls.mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m,nr_inodes=1k")
    for target in plan.get("read_only", ()):
        _seal(target)
    # A backstop to RLIMIT_NPROC, which counts each user of a box apart: Linux 6.14 has pid_max by pid namespace.
    _write("kernel/pid_max", plan["pid_max"])
    if plan.get("watchers"):
        _write("user/max_inotify_instances", plan["watchers"])
    _mask_proc()
    for fd in fds:
        os.close(fd)


def cover(stage: str) -> None:
    """Mount an empty directory at ``stage``, for :func:`overlay` to be made in; it goes with the root it lies in."""
    syscalls.mount("tmpfs", stage, "tmpfs", MS_NOSUID | MS_NODEV, "mode=700,size=1m")


def overlay(layers: Sequence[int]) -> None:
    """Mount the overlay in the current directory, a :func:`cover`, and enter it.

    The last of ``layers`` holds ``u`` and ``w``, the others are lower ones. The clones are attached under short names
    first: the options then fit mount(2)'s one page whatever the paths, and /proc/mounts inside shows no host path.
    """
    for index, fd in enumerate(layers):
        os.mkdir(str(index))
        syscalls.attach(fd, str(index))
    os.mkdir("root")
    last = len(layers) - 1
    lowers = [str(index) for index in range(last)]
    places = (("upperdir", f"{last}/u"), ("workdir", f"{last}/w"))
    try:
        options = [*(("lowerdir+", path) for path in lowers), *places, *_OPTIONS]
        fd = syscalls.new_mount("overlay", options, OVERLAY_FLAGS)  # its attributes have the numbers of mount(2)'s
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL):
            raise
        # A kernel before 5.2, or before 6.8, which knows no lowerdir+; where it is something else this fails, too.
        told = (("lowerdir", ":".join(lowers)), *places, *_OPTIONS)
        written = ",".join(f"{name}={value}" if value else name for name, value in told)
        syscalls.mount("overlay", "root", "overlay", OVERLAY_FLAGS, written)
    else:
        syscalls.attach(fd, "root")
        os.close(fd)
    os.chdir("root")


def _seal(path: str) -> None:
    """Nothing in the box can change what lies at ``path``: a mount of its own, read-only, over the same files.

    Where restored changes left nothing there, nothing is to be sealed: what an agent did must not fail the box.
    """
    if os.path.exists(path):
        syscalls.mount(path, path, None, MS_BIND)
        syscalls.mount(None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _write(setting: str, value: int) -> None:
    """A setting of the box's own namespaces, before all are read-only; where it has none of its own, nothing."""
    try:
        fd = os.open(f"/proc/sys/{setting}", os.O_WRONLY)
        os.write(fd, b"%d" % value)
        os.close(fd)
    except OSError:
        pass  # an older kernel, where this file is the host's


def _mask_proc() -> None:
    syscalls.mount("/proc/sys", "/proc/sys", None, MS_BIND)
    syscalls.mount(None, "/proc/sys", None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in _MASKED:
        syscalls.mount("/dev/null", f"/proc/{name}", None, MS_BIND)
    # Where the host's root is a container's, these files of ours are the box's root's; but who is killed first when
    # memory runs out is not the box's to say.
    syscalls.mount("/dev/null", "/proc/1/oom_score_adj", None, MS_BIND)
