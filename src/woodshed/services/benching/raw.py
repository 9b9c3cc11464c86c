"""The raw limit: ``raw.c``, compiled on the spot where there is a compiler."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

from woodshed.services.benching.external import told
from woodshed.services.benching.subject import CREATE, EXEC, Missing, Subject

COMPILERS = ("cc", "gcc", "clang")


def raw(root: Path, scratch: Path) -> Subject:
    """Raises Missing where there is no compiler."""
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise Missing("no C compiler found; apt-get install gcc libc6-dev")
    scratch.mkdir(parents=True)
    source, program = scratch / "raw.c", scratch / "raw"
    source.write_bytes((files("woodshed.services.benching") / "raw.c").read_bytes())
    done = subprocess.run([compiler, "-O2", "-o", program, source], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"{compiler} cannot compile it: {done.stderr.strip()[:300]}")

    async def create(count: int) -> list[float]:
        return await asyncio.to_thread(told, [str(program), str(root), str(scratch), str(count)])

    return Subject(
        "raw", "C: clone3, overlay, proc, pivot_root, exec true, removal",
        "user namespace and mapped owners (as root), seccomp, capabilities, limits, masks, devices, exec into it",
        {CREATE: create}, why={EXEC: "its one process is the command"},
    )
