"""Which Python a sandbox of the host image uses: one installation, found by its base, never through shims."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from woodshed.errors import ImageFault, UsageError
from woodshed.settings import setting

_PROBE = """
import json, os, sys, sysconfig
print(json.dumps([os.path.realpath(sys.base_prefix), list(sys.version_info[:3]),
                  sys.implementation.cache_tag, sysconfig.get_config_var("SOABI") or "", sysconfig.get_platform()]))
"""
_MOUNTED = ("/dev", "/proc", "/run", "/sys", "/tmp", "/workspace")  # noqa: S108 (places a sandbox covers)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A usable Python. ``exe`` is ``base/bin/pythonX.Y``; ``tag`` names version, ABI and platform; ``bound`` says
    whether ``base`` must be bound because it lies outside /usr."""

    base: Path
    exe: Path
    version: tuple[int, int, int]
    tag: str

    @property
    def short(self) -> str:
        """``3.11``."""
        return f"{self.version[0]}.{self.version[1]}"

    @property
    def bound(self) -> bool:
        """Whether ``base`` lies outside /usr and must be bound into the sandbox."""
        return not self.base.is_relative_to("/usr")


def find(home: Path) -> Interpreter:
    """The interpreter sandboxes use: the setting ``python``, else the one running us, else /usr/bin/python3.

    A base is passed over when binding it would show more than an installation: it is ``/`` or holds $HOME or our own
    ``home``; when the sandbox could not read it; or when it lies where a sandbox mounts something of its own.
    Raises UsageError for a chosen Python that cannot be used, ImageFault when there is none at all.
    """
    if chosen := setting("python"):
        return _chosen(Path(chosen).expanduser(), home)
    base = Path(os.path.realpath(sys.base_prefix))
    current = base / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    reasons = []
    for exe in (current, Path("/usr/bin/python3")):
        try:
            found = probe(exe)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            reasons.append(f"{exe}: {error}")
            continue
        if (why := objection(found, home)) is None:
            return found
        reasons.append(f"{exe}: {why}")
    raise ImageFault(f"no Python for the host image ({'; '.join(reasons)}). Install the system's python3, or name one "
                     "with WOODSHED_PYTHON")


def _chosen(exe: Path, home: Path) -> Interpreter:
    try:
        found = probe(exe)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise UsageError(f"{exe} is no Python that runs: {error}", field="WOODSHED_PYTHON",
                         remedy="Name the executable of a Python 3.10 or newer.") from None
    if why := objection(found, home):
        raise UsageError(f"{exe} cannot be used in a sandbox: {why}", field="WOODSHED_PYTHON",
                         remedy="Name another Python, such as /usr/bin/python3.")
    return found


def probe(exe: Path) -> Interpreter:
    """What ``exe`` says about itself, without its site packages. Raises OSError, ValueError, SubprocessError."""
    answer = subprocess.run([exe, "-I", "-S", "-c", _PROBE], capture_output=True, check=True, timeout=60, cwd="/")
    base_text, version, cache_tag, soabi, platform = json.loads(answer.stdout)
    base = Path(base_text)
    full = base / "bin" / f"python{version[0]}.{version[1]}"
    found = Interpreter(base, Path(os.path.realpath(full)), (version[0], version[1], version[2]),
                        f"{cache_tag}-{'.'.join(map(str, version))}-{soabi}-{platform}")
    if not found.exe.is_file():
        raise ValueError(f"{full} is missing")
    return found


def objection(found: Interpreter, home: Path) -> str | None:
    """Why ``found`` must not be used in a sandbox; None when it may."""
    if found.version < (3, 10):
        return f"Python {found.short} is older than 3.10"
    if not found.bound:
        return None
    base = found.base
    for private in (Path.home(), home):
        if Path(os.path.realpath(private)).is_relative_to(base):
            return f"its base {base} holds {private}"
    if any(base.is_relative_to(place) for place in _MOUNTED):
        return f"its base {base} lies where a sandbox mounts something of its own"
    if not found.exe.is_relative_to(base):
        return f"its executable {found.exe} lies outside its base {base}"
    library = base / "lib" / f"python{found.short}"
    for path in (base, base / "bin", found.exe, base / "lib", library, library / "os.py"):
        if not _readable(path):
            return f"{path} is not readable for everybody"
    return None


def _readable(path: Path) -> bool:
    """Whether users without privileges on it can read ``path`` itself; a sandbox of root's is such a user."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & wanted == wanted or (os.geteuid() != 0 and os.access(path, os.R_OK))
