"""The same as an ordinary user: root's tests run commands once more as nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import woodshed

NOBODY = 65534


def as_nobody(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """The finished command, run as nobody without any privilege."""
    # Through a shell: setpriv itself still holds root's capabilities when it looks the program up.
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", "sh", "-c", 'exec "$0" "$@"']
    return subprocess.run([*prefix, *map(str, command)], capture_output=True, text=True, check=False, **options)


def python_for_all() -> str | None:
    """A Python of our version that nobody may run: ours, or the system's."""
    tag = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/python{tag}", f"/usr/local/bin/python{tag}"):
        if Path(candidate).exists() and as_nobody(candidate, "-c", "pass").returncode == 0:
            return candidate
    return None


def environment(folder: Path) -> dict[str, str]:
    """Variables for a Python of nobody's that finds Woodshed and its packages; ``folder`` is its home."""
    paths = [Path(woodshed.__file__).parents[1], *(Path(path) for path in sys.path if path.endswith("-packages"))]
    return {
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(folder),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
    }
