"""A disk of a few megabytes that only one command sees, gone with it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def on_small_disk(folder: Path, size: str) -> list[str]:
    """The start of a command line that runs the rest with a disk of ``size`` (as mount writes it) on ``folder``.

    Skips where no private mount can be made.
    """
    if shutil.which("unshare") is None:
        pytest.skip("no 'unshare' to mount a small disk with: apt-get install util-linux")
    flags = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
    mount = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'
    command = ["unshare", *flags, "sh", "-c", mount, "sh", size, str(folder)]
    probe = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no private mounts here ({probe.stderr.strip()}): run as root or allow user namespaces")
    return command
