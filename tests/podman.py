"""A container daemon for tests: the one that is there, or Podman's, started in a folder of its own."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from woodshed.sandbox.docker.engine import find

_READY_S = 30.0


@contextmanager
def daemon(folder: Path) -> Iterator[Path]:
    """Its socket. Skips where there is neither a daemon nor a Podman that root could start one with."""
    if (found := find()) is not None:
        yield found
        return
    podman = shutil.which("podman")
    if podman is None or shutil.which("runc") is None:
        pytest.skip("no container daemon: start docker, or apt install podman runc")
    socket = folder / "s"
    options = ["--root", str(folder / "root"), "--runroot", str(folder / "run"), "--runtime", "runc",
               "--cgroup-manager", "cgroupfs", "--storage-driver", "overlay"]
    service = subprocess.Popen(
        [podman, *options, "system", "service", "--time=0", f"unix://{socket}"], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)  # conmon leaves files where it was started
    try:
        until = time.monotonic() + _READY_S
        while not socket.is_socket():
            if service.poll() is not None or time.monotonic() > until:
                pytest.skip("podman's service does not start here: run 'podman system service' to see why")
            time.sleep(0.05)
        yield socket
    finally:
        service.terminate()
        service.wait()
        for left in ("container", "image"):
            subprocess.run([podman, *options, left, "prune", "--force", *(["--all"] if left == "image" else [])],
                           check=False, capture_output=True)
        subprocess.run(["umount", folder / "root" / "overlay"], check=False, capture_output=True)
