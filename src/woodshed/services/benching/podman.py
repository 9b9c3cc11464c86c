"""Podman: what most agent systems pay for a sandbox, on an image imported from the common root."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from woodshed.errors import WoodshedError
from woodshed.services.benching.external import External, version
from woodshed.services.benching.subject import CREATE, EXEC, Missing, Subject

_IMAGE = "localhost/woodshed-bench:latest"
# Root of a container may have no CAP_SYS_RESOURCE, and podman's own defaults would raise limits.
_RUN = ("--network=none", "--pull=never", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
_IDLE = "woodshed-bench-idle"


def podman(root: Path, scratch: Path) -> Subject:
    """Keeps its storage below ``scratch``. Raises Missing where there is none or it does not work."""
    program = shutil.which("podman")
    if program is None:
        raise Missing("no podman found; apt-get install podman")
    external = External(scratch)
    archive = scratch / "root.tar"
    subprocess.run(["tar", "--owner=0", "--group=0", "-C", root, "-cf", archive, "."], check=True)
    # Its runroot may have no more than 50 characters: sockets stand there.
    runroot = Path(tempfile.mkdtemp(prefix="shed-"))
    try:
        command, how = _working(program, external, runroot, archive)
    except Missing:
        shutil.rmtree(runroot, ignore_errors=True)
        raise
    external.run([*command, "run", *_RUN, "--detach", "--name", _IDLE, _IMAGE, "/bin/sleep", "1000000"])

    async def close() -> None:
        with suppress(WoodshedError):
            await asyncio.to_thread(external.run, [*command, "rm", "--force", "--time", "0", _IDLE])
        umount = ["umount", str(scratch / "storage" / "overlay")]
        await asyncio.to_thread(subprocess.run, umount, capture_output=True, check=False)
        await asyncio.to_thread(shutil.rmtree, runroot, ignore_errors=True)

    return Subject(
        "podman", f"{version(program, '--version')} ({how})", "",
        {CREATE: external.burst(*command, "run", *_RUN, "--rm", _IMAGE, "/bin/true"),
         EXEC: external.burst(*command, "exec", _IDLE, "/bin/true")},
        share=0.5, close=close,
    )


def _working(program: str, external: External, runroot: Path, archive: Path) -> tuple[list[str], str]:
    """The first of its configurations that runs a container here, and its name. Raises Missing."""
    failure: Missing | None = None
    for how, options in _configurations():
        command = [program, "--root", str(external.scratch / "storage"), "--runroot", str(runroot),
                   "--storage-driver", "overlay", *options]
        try:
            external.run([*command, "import", archive, _IMAGE])
            external.run([*command, "run", *_RUN, "--rm", _IMAGE, "/bin/true"])
        except Missing as error:
            failure = failure or error
            continue
        return command, how
    raise failure or Missing("no runtime for podman found; apt-get install crun")


def _configurations() -> Iterator[tuple[str, list[str]]]:
    """Its own choice first; then what works without systemd, and where crun refuses two versions of cgroups."""
    user = "as root" if os.geteuid() == 0 else "rootless"
    yield user, []
    yield f"{user}, cgroupfs", ["--cgroup-manager", "cgroupfs"]
    for name in ("crun", "runc"):
        if path := shutil.which(name):
            yield f"{user}, {name}, cgroupfs", ["--runtime", path, "--cgroup-manager", "cgroupfs"]
