"""Programs of others as layers: installed once, by pip or npm, without running a line of theirs.

pip unpacks wheels alone, npm with ``--ignore-scripts``. What answered a declaration once is noted and used again, so
that an agent stays the same until its declaration changes; npm's lock file stays in the layer and names what came.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from packaging.utils import canonicalize_name

from woodshed.errors import EnvironmentFault, ImageFault, Unsupported, UsageError
from woodshed.model import Program
from woodshed.sandbox.images import pip, venv
from woodshed.sandbox.images.layers import Layers
from woodshed.sandbox.images.python import Interpreter
from woodshed.sandbox.images.requirement import Pin, key, parse
from woodshed.sandbox.images.view import View

_FORMAT = "1"
_PACKAGE = re.compile(r"(?:@[a-z0-9][\w.-]*/)?[a-z0-9][\w.-]*@[0-9][\w.+-]*", re.ASCII)
_NPM = ("install", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev", "--no-update-notifier",
        "--loglevel=error", "--omit-lockfile-registry-resolved")
_UNREACHABLE = re.compile(r"ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN|ECONNRESET|ERR_SOCKET_TIMEOUT|network", re.I)
_TAIL_CHARS = 800


def check(program: Program, image: str, view: View, search: str) -> None:
    """Return where an image that is not ``host`` can run ``program``: by its own node, below its own PATH, ``search``.

    Packages of npm are scripts, and the same everywhere; a Python's are made for its version and place, which an image
    chooses itself. Raises Unsupported.
    """
    if program.pip:
        raise Unsupported(f"programs with the image {image}: {program.name} is installed by pip, for the Python of "
                          "'host'. Install it into the image, and give its command")
    if not any(view.is_file(f"{folder}/node") for folder in search.split(":") if folder.startswith("/")):
        raise Unsupported(f"programs with the image {image}: {program.name} needs node, and the image has none on its "
                          f"PATH ({search}). Use one with Node.js, or 'host'")


def layer(program: Program, layers: Layers, interpreter: Callable[[], Interpreter], *, host: bool = True) -> Path:
    """The layer that holds ``program`` at its place. Blocks while it is made; then a lookup.

    Not of the image ``host``, a program of npm runs by the image's own node (see :func:`check`).

    Raises UsageError for a bad declaration, ImageFault where it cannot be installed, EnvironmentFault where an index
    cannot be reached, Unsupported where this machine has no npm, or none that a sandbox could run.
    """
    if bool(program.pip) == bool(program.npm):
        raise UsageError("is installed by pip or by npm, by one of them", field=f"programs.{program.name}",
                         remedy="Give pip = [...] or npm = [...].")
    return _of_pip(program, layers, interpreter()) if program.pip else _of_npm(program, layers, host=host)


# -- pip ---------------------------------------------------------------------------------------------------------------


def _of_pip(program: Program, layers: Layers, python: Interpreter) -> Path:
    wanted, left_out = parse(program.pip), {str(canonicalize_name(name)) for name in program.without}
    asked = key("program", _FORMAT, python.tag, str(python.exe), *wanted, "without", *sorted(left_out))
    with layers.lock(asked):
        note = layers.note(asked)
        if isinstance(note, list):
            pins = tuple(Pin.read(line) for line in note)
        else:
            with layers.scratch() as scratch:
                found = pip.resolve(python.exe, wanted, (), scratch)
            pins = tuple(pin for pin in found if pin.name not in left_out)
            layers.set_note(asked, [str(pin) for pin in pins])

    def fill(root: Path) -> None:
        with layers.scratch() as scratch:
            venv.fill(root, python, pins, scratch, home=program.place.lstrip("/"))

    made = key("program", _FORMAT, program.name, python.tag, str(python.exe), *map(str, pins))
    return layers.make(made, fill)


# -- npm ---------------------------------------------------------------------------------------------------------------


def _of_npm(program: Program, layers: Layers, *, host: bool) -> Path:
    for package in program.npm:
        if not _PACKAGE.fullmatch(package):
            raise UsageError(f"{package!r} is no package with its version", field=f"programs.{program.name}.npm",
                             remedy="Write NAME@VERSION, such as '@qwen-code/qwen-code@0.15.10'.")
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise Unsupported(f"{program.name} needs node and npm on this machine: install Node.js (Debian: apt install "
                          "nodejs npm)")
    if host and not Path(os.path.realpath(node)).is_relative_to("/usr"):
        raise Unsupported(f"{program.name} needs a node below /usr, which a sandbox sees; {node} is not: install "
                          "Node.js for the system")
    asked = key("npm", _FORMAT, program.name, platform.machine(), *program.npm)
    if isinstance(known := layers.note(asked), str) and (found := layers.find(known)):
        return found

    def fill(root: Path) -> str:
        lock = _install(npm, program, root)
        return key("npm", _FORMAT, program.name, platform.machine(), *program.npm, lock)

    path = layers.make(asked, fill)
    layers.set_note(asked, path.name)
    return path


def _install(npm: str, program: Program, root: Path) -> str:
    """Fill the place of ``program`` below ``root``; the sha256 of the lock file."""
    place = root / program.place.lstrip("/")
    place.mkdir(parents=True)
    (place / "package.json").write_text("{}\n")
    cache = root / ".npm"
    command = [npm, *_NPM, "--prefix", str(place), "--cache", str(cache), "--", *program.npm]
    done = subprocess.run(command, cwd=place, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    shutil.rmtree(cache, ignore_errors=True)
    if done.returncode:
        said = re.sub(r"(\w+://)[^/\s@]+@", r"\1****@", (done.stderr + done.stdout).decode(errors="replace")).strip()
        fault = EnvironmentFault if _UNREACHABLE.search(said) else ImageFault
        raise fault(f"npm could not install {', '.join(program.npm)}: {said[-_TAIL_CHARS:]}")
    (place / "bin").symlink_to("node_modules/.bin")
    for path in (place / "node_modules" / ".bin").iterdir():
        target = path.resolve()
        if target.is_file() and target.is_relative_to(place):
            target.chmod(stat.S_IMODE(target.stat().st_mode) | 0o111)
    (place / "node_modules" / ".package-lock.json").unlink(missing_ok=True)
    venv.settle(root)
    return hashlib.sha256((place / "package-lock.json").read_bytes()).hexdigest()
