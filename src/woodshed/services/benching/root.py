"""The root file system that every engine starts from: this machine's sh, true and sleep with their libraries.

One directory of a few megabytes, so that no engine is measured on another image than the next.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from woodshed.errors import EnvironmentFault

PROGRAMS = ("sh", "true", "sleep")
_MOUNT_POINTS = ("dev", "proc", "sys", "run", "tmp", "root", "workspace", "etc")


def make(root: Path) -> Path:
    """``root``, made. Raises EnvironmentFault where this machine's programs cannot be copied."""
    for name in ("bin", *_MOUNT_POINTS):
        (root / name).mkdir(parents=True)
    root.chmod(0o755)
    for name in PROGRAMS:
        found = shutil.which(name)
        if found is None:
            raise EnvironmentFault(f"this machine has no {name} to measure with")
        _copy(Path(found), root / "bin" / name)
        for library in _libraries(found):
            _copy(library, root / str(library).lstrip("/"))
    # Without it the loader tries a dozen places for each library, in every sandbox of every engine.
    if (cache := Path("/etc/ld.so.cache")).is_file():
        _copy(cache, root / "etc" / "ld.so.cache")
    # Some engines want to know who root is.
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\n")
    return root


def _copy(source: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)  # what a link leads to, under the link's name
        target.chmod(0o755)


def _libraries(program: str) -> list[Path]:
    """What the loader would load, the loader included; a static program needs nothing."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [Path(path) for path in re.findall(r"(?:^|\s)(/\S+)(?= \(0x)", told)]
