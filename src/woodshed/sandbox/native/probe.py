"""What native sandboxes find on this machine: tried by doing, not guessed from versions; and how to mend what fails."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from woodshed.errors import WoodshedError
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.images import Bind, Rootfs
from woodshed.sandbox.native import cgroups
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.ids import privileged
from woodshed.sandbox.native.inside import confine, syscalls

_KERNEL = (5, 12)
"""mount_setattr(2), and overlayfs in user namespaces (5.11)."""
_KERNEL_ROOT = (5, 19)
"""Overlayfs over idmapped layers, which a root engine needs."""
_SETTINGS = (
    ("/proc/sys/user/max_user_namespaces", lambda value: int(value) > 0, "sysctl -w user.max_user_namespaces=15000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", lambda value: value != "0",
     "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", lambda value: value == "0",
     "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give this Python an AppArmor profile with userns"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing tried. ``required``: without it there is no native sandbox. ``remedy`` is empty where all is well."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = True

    def to_json(self) -> dict[str, str | bool]:
        """Plain values, by field."""
        return {"name": self.name, "ok": self.ok, "detail": self.detail, "remedy": self.remedy,
                "required": self.required}


class _Bare:
    """The least root that can run a program: the host's /usr, and its links."""

    def __init__(self, root: Path) -> None:
        self._root = root
        for name in ("dev", "proc", "tmp", "usr", "root"):
            (root / name).mkdir()
        self._binds = [Bind(Path("/usr"), "/usr")]
        for name in ("bin", "lib", "lib32", "lib64", "sbin"):
            host = Path("/", name)
            if host.is_symlink():
                (root / name).symlink_to(host.readlink())
            elif host.is_dir():
                (root / name).mkdir()
                self._binds.append(Bind(host, f"/{name}"))

    def prepare(self, spec: EnvironmentSpec) -> Rootfs:
        """Always the same root."""
        return Rootfs("sha256:probe", (self._root,), tuple(self._binds), {"PATH": "/usr/bin:/bin"}, "/bin/sh")


async def probe(home: Path) -> list[Finding]:
    """Everything a native sandbox needs and uses, in the order it needs it. Makes and removes real sandboxes.

    Never raises for what it looks at; ``home`` is where sandboxes would lie, made if missing.
    """
    findings = [_machine(), _kernel(), *_sysctls(), _filter(), *_storage(home)]
    findings.append(_deeper(findings, await _sandbox(home)))
    findings += [*await _limits(), _landlock(), _pids()]
    return findings


def _deeper(before: list[Finding], sandbox: Finding) -> Finding:
    """Where a sandbox works, whatever looked like a hindrance is a remark: doing counts, not versions or settings."""
    if sandbox.ok:
        before[:] = [Finding(f.name, f.ok, f.detail, f.remedy, required=False) for f in before]
    return sandbox


def _machine() -> Finding:
    machine = syscalls.MACHINE
    if machine == "x86_64":
        return Finding("machine", True, "x86-64")
    if machine == "aarch64":
        return Finding("machine", True, "aarch64: the tables of calls follow the kernel's, but were never run there")
    return Finding("machine", False, machine, "Native sandboxes know x86-64 and aarch64; use another engine here.")


def _kernel() -> Finding:
    release = platform.release()
    version = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    needed = _KERNEL_ROOT if privileged() else _KERNEL
    if version >= needed:
        return Finding("kernel", True, f"Linux {release}")
    who = "root" if privileged() else "an ordinary user"
    return Finding("kernel", False, f"Linux {release}; {who} needs {needed[0]}.{needed[1]}",
                   "Upgrade the kernel" + (", or run as an ordinary user (5.12)." if privileged() else "."))


def _sysctls() -> list[Finding]:
    if os.geteuid() == 0:
        return []
    findings = []
    for path, fine, remedy in _SETTINGS:
        try:
            value = Path(path).read_text().strip()
        except OSError:
            continue  # this kernel has no such restriction
        name = path.removeprefix("/proc/sys/").replace("/", ".")
        ok = fine(value)
        findings.append(Finding(name, ok, value, "" if ok else f"As root: {remedy}"))
    return findings


def _filter() -> Finding:
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
        size = len(confine.program(syscalls.MACHINE)) // 8
    except (OSError, KeyError):
        return Finding("seccomp", False, "no filter can be loaded", "Use a kernel with CONFIG_SECCOMP_FILTER.")
    return Finding("seccomp", "errno" in actions, f"a filter of {size} instructions")


def _storage(home: Path) -> list[Finding]:
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as folder:
            os.setxattr(folder, "user.overlay.opaque", b"y")
        free_mb = shutil.disk_usage(home).free >> 20
    except OSError as error:
        what = "extended attributes" if error.errno in (errno.ENOTSUP, errno.EPERM) else str(error)
        return [Finding("storage", False, f"{home}: no {what}" if "ext" in what else f"{home}: {what}",
                        "Set WOODSHED_HOME to a folder of yours on ext4, xfs, btrfs or tmpfs (Linux 6.6).")]
    return [Finding("storage", free_mb > 500, f"{home}: {free_mb} MB free", "" if free_mb > 500 else "Free some disk.")]


async def _sandbox(home: Path) -> Finding:
    try:
        return await _made_and_used(home)
    except OSError as error:
        return Finding("sandbox", False, f"none can be made below {home}: {error.strerror}",
                       "Set WOODSHED_HOME to a folder that can be written.")


async def _made_and_used(home: Path) -> Finding:
    """Build one, run ``true`` in it, and take it down."""
    with tempfile.TemporaryDirectory(dir=home, prefix="probe-") as folder:
        (root := Path(folder, "root")).mkdir()
        Path(folder).chmod(0o755)
        engine = NativeEngine(Path(folder), images=_Bare(root))
        try:
            box = await engine.create(EnvironmentSpec(workdir="/root"), SandboxPolicy())
            result = await box.exec(["true"], timeout_s=30)
            if result.exit_code:
                said = result.stderr.decode(errors="replace")
                return Finding("sandbox", False, f"true exited {result.exit_code}: {said}",
                               "The host's /usr could not be used: try an image 'dir:PATH'.")
            mode = "an ordinary user: one user id"
            if privileged():
                mode = "root: a range of user ids a sandbox, idmapped layers"
            return Finding("sandbox", True, f"made, used and ended as {mode}; no network but its own loopback")
        except WoodshedError as error:
            return Finding("sandbox", False, str(error), _remedy(str(error)))
        finally:
            await engine.close()


def _remedy(text: str) -> str:
    if "clone" in text or "unshare" in text:
        return ("User namespaces are refused here: see the settings above; in a container, allow them "
                "(docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined).")
    if "mount proc" in text:
        return ("This container hides parts of /proc, which forbids a new one: "
                "docker run --security-opt systempaths=unconfined.")
    if "mount_setattr" in text:
        return "The disk of WOODSHED_HOME knows no idmapped mounts: use ext4, xfs or btrfs, or run as an ordinary user."
    if "overlay" in text:
        return "Put WOODSHED_HOME on a disk that can hold an overlay's changes (not on an overlay itself)."
    return "Report this with the output of 'woodshed doctor --json'."


_DELEGATE = "Run as root, or in a group of your own: systemd-run --user --scope -p Delegate=yes woodshed …"
_UNTRIED = "; version 2 could not be tested on the developers' machines"
_LOOKED_AT = "disk and files (looked at while commands run), open files, file size, output, wall time"


async def _limits() -> list[Finding]:
    """What holds memory and CPU here, and what freezes: tried by making groups."""
    control = await asyncio.to_thread(cgroups.control)
    exempt = os.geteuid() == 0 and not privileged()
    always = f"processes{' (within 300)' if exempt else ''}, {_LOOKED_AT}"
    untried = _UNTRIED if control.version == 2 else ""
    held = [name for name in ("memory", "cpu") if name in control.parents]
    rest = ", ".join(name for name in ("memory", "cpu") if name not in held)
    by_groups = f"{' and '.join(held)} by cgroups version {control.version}{untried}" if held else ""
    looked = f"{rest} looked at while commands run ({control.reason or 'no controller'}){untried}" if rest else ""
    detail = "; ".join(part for part in (by_groups, looked, f"always: {always}") if part)
    group = control.make("probe", str(os.getpid()), Limits())
    try:
        group = await asyncio.to_thread(control.make, "probe", str(os.getpid()), Limits(memory_mb=64, cpus=1.0))
        frozen = await asyncio.to_thread(group.freeze)
    except OSError as error:
        return [Finding("limits", False, f"cgroups failed: {error}; always: {always}", _DELEGATE, required=False)]
    finally:
        await asyncio.to_thread(group.remove)
        await asyncio.to_thread(control.close, "probe")
    freezing = f"by cgroups version 2{untried}" if frozen else "by SIGSTOP, which programs inside can notice"
    return [Finding("limits", not rest, detail, _DELEGATE if rest else "", required=False),
            Finding("freezing", True, freezing, required=False)]


def _landlock() -> Finding:
    abi = syscalls.landlock_abi()
    detail = f"version {abi}: allow sets of commands are enforced"
    return Finding("landlock", abi > 0, detail if abi else "not there: policies with commands.allow are refused",
                   required=False, remedy="" if abi else "Boot with lsm=landlock,… (Linux 5.13) to use commands.allow.")


def _pids() -> Finding:
    """Two descriptors, and some process ids, a sandbox."""
    with Path("/proc/sys/kernel/pid_max").open() as file:
        pids = int(file.read())
    detail = f"{pids} process ids, Python {sys.version_info.major}.{sys.version_info.minor}"
    ok = pids >= 4096
    return Finding("room", ok, detail, "" if ok else "sysctl -w kernel.pid_max=65536", required=False)
