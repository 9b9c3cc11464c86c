"""The ``dir:PATH`` image: an unpacked root directory as the lowest layer, read-only as it is."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from woodshed.errors import UsageError
from woodshed.sandbox.images.tree import Entry, Plan, landing, place

ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
}
MOUNT_POINTS = {"dev": 0o755, "proc": 0o555, "root": 0o700, "tmp": 0o1777}
"""What a sandbox mounts on, and the home of its user."""


def root_of(image: str, home: Path) -> Path:
    """The directory that ``dir:PATH`` names, links resolved.

    Raises UsageError where it does not exist, has no ``/bin/sh``, or holds our own state (``/`` among them).
    """
    given = image.removeprefix("dir:")
    path = Path(os.path.realpath(Path(given).expanduser()))
    if not given or not path.is_dir():
        raise UsageError(f"{given or 'nothing'} is not a directory", field="image",
                         remedy="Write dir:PATH with the path of an unpacked root file system.")
    if Path(os.path.realpath(home)).is_relative_to(path):
        raise UsageError(f"{path} holds Woodshed's own state ({home})", field="image",
                         remedy="Use the image 'host' for this machine's programs, or another directory.")
    sh = path / landing("/bin/sh", (path,)).lstrip("/")
    if not sh.is_file():
        raise UsageError(f"{path} has no /bin/sh, so it is no root file system", field="image",
                         remedy="Unpack a whole image there (for example with 'docker export' and tar).")
    return path


def shell(root: Path) -> str:
    """``/bin/bash`` where the root has it, else ``/bin/sh``."""
    return "/bin/bash" if (root / landing("/bin/bash", (root,)).lstrip("/")).is_file() else "/bin/sh"


def missing(root: Path) -> Plan:
    """The mount points a sandbox needs and ``root`` lacks."""
    plan: Plan = {}
    for name, mode in MOUNT_POINTS.items():
        if not (root / name).is_dir():
            place(plan, name, Entry("directory", mode))
    return plan


def manifest(root: Path) -> str:
    """The sha256 of a listing of ``root``: path, type, mode, size and mtime of each entry; contents are not read."""
    total = hashlib.sha256()
    for directory, folders, files in os.walk(root):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = os.path.join(directory, name)  # noqa: PTH118 (hot loop over strings)
            info = os.lstat(path)
            line = f"{info.st_mode:o} {info.st_size} {info.st_mtime_ns}"
            total.update(os.fsencode(os.path.relpath(path, root)) + b"\0" + line.encode() + b"\n")
    return total.hexdigest()
