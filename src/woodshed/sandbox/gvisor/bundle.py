"""An OCI bundle of one sandbox: what runsc reads.

Source: opencontainers/runtime-spec 1.0, config.json, as far as runsc has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from woodshed.sandbox.remote.engine import Container

GROUPS = "/sys/fs/cgroup"
"""Where PID 1 finds cgroups of gVisor's own kernel, and puts them away: inside/serve.py. runsc knows no other place."""
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "NET_BIND_SERVICE", "SETPCAP",
                 "SYS_ADMIN")
"""SYS_ADMIN takes the cgroups away; PID 1 drops it before anything runs."""
_NAMESPACES = ("pid", "ipc", "uts", "mount", "network")


def write(folder: Path, rootfs: Path, container: Container) -> None:
    """Write ``config.json`` into ``folder``. Raises OSError."""
    (folder / "config.json").write_text(json.dumps(_config(rootfs, container)))


def _config(rootfs: Path, container: Container) -> Mapping[str, Any]:
    held = [f"CAP_{name}" for name in _CAPABILITIES]
    files = max(container.limits.open_files, 1024)
    return {
        "ociVersion": "1.0.2", "hostname": "sandbox", "root": {"path": str(rootfs), "readonly": False},
        "process": {
            "terminal": False, "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": list(container.argv),
            "env": [f"{name}={value}" for name, value in container.env.items()], "noNewPrivileges": True,
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), held),
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": files, "hard": files}],
        },
        "mounts": [*_own(container), *(
            {"destination": bind.target, "type": "bind", "source": str(bind.source),
             "options": ["ro", "rbind", "nosuid", "nodev"]} for bind in container.binds)],
        "linux": {"namespaces": [{"type": kind} for kind in _NAMESPACES]},
    }


def _own(container: Container) -> list[dict[str, Any]]:
    """File systems of the sandbox's own kernel."""
    memory = {**container.tmpfs, "/dev/shm": container.shm_kb}  # noqa: S108 (the sandbox's)
    return [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {"destination": GROUPS, "type": "cgroup", "source": "none"},
        *({"destination": path, "type": "tmpfs", "source": "tmpfs",
           "options": ["nosuid", "nodev", "mode=1777", f"size={kb}k"]} for path, kb in memory.items()),
    ]
