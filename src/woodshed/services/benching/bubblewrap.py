"""Bubblewrap: the same namespaces from a setuid-free C program; one command a sandbox."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from woodshed.services.benching.external import External, version
from woodshed.services.benching.subject import CREATE, EXEC, Missing, Subject


def bubblewrap(root: Path, scratch: Path) -> Subject:
    """Raises Missing where there is no ``bwrap``."""
    program = shutil.which("bwrap")
    if program is None:
        raise Missing("no bwrap found; apt-get install bubblewrap")
    told = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    overlays = "--overlay " in told.stdout + told.stderr  # since 0.11
    external = External(scratch)
    fresh = scratch / "fresh"
    base: list[str | Path] = ["--ro-bind", root, "/"]
    if overlays:
        base = ["--overlay-src", root, "--overlay", fresh / "u", fresh / "w", "/"]
    command = [program, "--unshare-all", "--die-with-parent", *base, "--proc", "/proc", "--dev", "/dev",
               "--tmpfs", "/tmp", "--", "/bin/true"]  # noqa: S108 (of the sandbox)
    lacks = "more than one user id, seccomp, limits, exec into it, snapshots"
    return Subject(
        "bwrap", version(program, "--version"), lacks if overlays else f"an overlay (its root is read-only), {lacks}",
        {CREATE: external.burst(*command, fresh=overlays)}, why={EXEC: "it cannot run a second command in a sandbox"},
    )
