"""The virtual environment at /opt/venv as layers: pytest and pip, and what a task requires."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from woodshed.sandbox.images import pip
from woodshed.sandbox.images.python import Interpreter
from woodshed.sandbox.images.requirement import Pin
from woodshed.sandbox.images.tree import EPOCH_S

HOME = "opt/venv"
_FRAME = ("lib64", "pyvenv.cfg", "bin/activate", "bin/python", "bin/python3")
_ACTIVATE = """VIRTUAL_ENV=/opt/venv; export VIRTUAL_ENV
case ":$PATH:" in *:/opt/venv/bin:*) ;; *) PATH=/opt/venv/bin:$PATH; export PATH;; esac
deactivate() { :; }
"""


def fill(
    layer: Path, python: Interpreter, pins: Sequence[Pin], scratch: Path, links: Path | None = None, *,
    bare: bool = False, home: str = HOME,
) -> None:
    """Make the environment with exactly ``pins`` at ``home`` below ``layer``. Raises ImageFault or EnvironmentFault.

    ``bare`` leaves out what an environment is without packages: the layer lies over another one.

    No code of the packages runs: their wheels are unpacked by a Python that started while the environment was still
    empty, and compiled by one that reads no site folder (a ``.pth`` file would run at its start).
    """
    root = layer / home
    _frame(root, python)
    pip.install(root / "bin" / "python", pins, scratch, links)
    if bare:
        for name in (*_FRAME, f"bin/python{python.short}"):
            (root / name).unlink(missing_ok=True)
    _rebase_scripts(root, layer)
    _compile(layer, root, python)
    settle(layer)


def _frame(root: Path, python: Interpreter) -> None:
    """What ``python -m venv --without-pip`` makes, by hand: Debian's python3 has no venv module by default."""
    binaries, library = root / "bin", root / "lib" / f"python{python.short}" / "site-packages"
    binaries.mkdir(parents=True)
    library.mkdir(parents=True)
    (root / "lib64").symlink_to("lib")
    (root / "pyvenv.cfg").write_text(
        f"home = {python.exe.parent}\ninclude-system-site-packages = false\n"
        f"version = {'.'.join(map(str, python.version))}\nexecutable = {python.exe}\n"
    )
    if root.parts[-2:] == Path(HOME).parts:
        (binaries / "activate").write_text(_ACTIVATE)
    (binaries / f"python{python.short}").symlink_to(python.exe)
    for name in ("python3", "python"):
        (binaries / name).symlink_to(f"python{python.short}")


def _rebase_scripts(root: Path, layer: Path) -> None:
    """Scripts name the Python of the folder they were made in; inside it is /opt/venv."""
    for script in (root / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            text = script.read_bytes()
            script.write_bytes(text.replace(os.fsencode(f"{layer}/"), b"/"))


def _compile(layer: Path, root: Path, python: Interpreter) -> None:
    """Unchecked-hash pycs: the fastest to load, and true whatever the mtimes. Sources that do not compile stay."""
    command = [str(python.exe), "-I", "-S", "-m", "compileall", "-q", "-j", "2", "--invalidation-mode",
               "unchecked-hash", "-s", str(layer), "-p", "/", str(root / "lib")]
    subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False)


def settle(layer: Path) -> None:
    """World-readable modes without setuid, and equal times."""
    for directory, folders, files in os.walk(layer, topdown=False):
        for name in [*folders, *files]:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            os.utime(path, (EPOCH_S, EPOCH_S), follow_symlinks=False)
    os.utime(layer, (EPOCH_S, EPOCH_S))
