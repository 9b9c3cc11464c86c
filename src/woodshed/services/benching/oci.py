"""crun and runc: OCI runtimes, on a bundle made on the spot."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from woodshed.errors import WoodshedError
from woodshed.services.benching.external import External, version
from woodshed.services.benching.subject import CREATE, EXEC, Missing, Subject

_KEPT = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETGID", "CAP_SETUID", "CAP_KILL")
_UNIFIED = Path("/sys/fs/cgroup/unified")
# A runtime that refuses a machine with both cgroup versions works where it sees one: in a mount namespace of its own.
_ONE_VERSION = ("unshare", "--mount", "--propagation", "private", "sh", "-c", f'umount {_UNIFIED}; exec "$@"', "sh")


def crun(root: Path, scratch: Path) -> Subject:
    """Raises Missing where there is none or it does not work."""
    return _runtime("crun", root, scratch)


def runc(root: Path, scratch: Path) -> Subject:
    """Raises Missing where there is none or it does not work."""
    return _runtime("runc", root, scratch)


def _runtime(name: str, root: Path, scratch: Path) -> Subject:
    program = shutil.which(name)
    if program is None:
        raise Missing(f"no {name} found; apt-get install {name}")
    once, idle = scratch / "once", scratch / "idle"
    _bundle(once, root, ["/bin/true"])
    _bundle(idle, root, ["/bin/sleep", "1000000"])
    command = [program, "--root", str(scratch / "state")]
    external = _working(scratch, lambda made: made.run([*command, "run", "--bundle", once, f"{name}-trial"]))
    ident = f"woodshed-bench-{os.getpid()}-{name}"
    external.run([*command, "run", "--detach", "--bundle", idle, ident])

    async def close() -> None:
        with suppress(WoodshedError):
            await asyncio.to_thread(external.run, [*command, "delete", "--force", ident])

    return Subject(
        name, version(program, "--version"), "an overlay (its root is read-only), seccomp, removal of changes",
        {CREATE: external.burst(*command, "run", "--bundle", once, f"{ident}-once"),
         EXEC: external.burst(*command, "exec", ident, "/bin/true")},
        close=close,
    )


def _working(scratch: Path, trial: Callable[[External], object]) -> External:
    """As it is, or else where one version of cgroups is in sight. Raises Missing."""
    external = External(scratch)
    try:
        trial(external)
    except Missing:
        if os.geteuid() or not _UNIFIED.is_dir():
            raise
        external = External(scratch, _ONE_VERSION)
        trial(external)
    return external


def _bundle(folder: Path, root: Path, argv: Sequence[str]) -> None:
    """A directory with the ``config.json`` of the OCI runtime specification 1.0.2."""
    folder.mkdir(parents=True)
    namespaces = ["pid", "mount", "ipc", "uts", "network", *(["user"] if os.geteuid() else [])]
    capabilities = dict.fromkeys(("bounding", "effective", "permitted"), _KEPT)
    linux: dict[str, Any] = {"namespaces": [{"type": kind} for kind in namespaces]}
    if os.geteuid():
        linux["uidMappings"] = [{"containerID": 0, "hostID": os.geteuid(), "size": 1}]
        linux["gidMappings"] = [{"containerID": 0, "hostID": os.getegid(), "size": 1}]
    config = {
        "ociVersion": "1.0.2", "hostname": "sandbox", "linux": linux,
        "root": {"path": str(root), "readonly": True},
        "process": {"user": {"uid": 0, "gid": 0}, "args": list(argv), "env": ["PATH=/bin"], "cwd": "/",
                    "capabilities": capabilities, "noNewPrivileges": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
            {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
             "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs",  # noqa: S108 (of the container)
             "options": ["nosuid", "nodev", "mode=1777"]},
        ],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
