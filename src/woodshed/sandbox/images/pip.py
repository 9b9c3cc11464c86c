"""pip, run on the host for another Python: it resolves and unpacks wheels, which runs no package's code.

Never a source distribution: their builds run code, and that happens only inside a sandbox (``build``).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from packaging.utils import canonicalize_name

from woodshed.errors import EnvironmentFault, ImageFault
from woodshed.sandbox.images.requirement import Pin
from woodshed.settings import setting

_UNWANTED = ("PREFIX", "PYTHON", "REQUIREMENT", "REQUIRE_VIRTUALENV", "ROOT", "TARGET", "USER", "EDITABLE", "REPORT",
             "DRY_RUN", "REQUIRE_HASHES", "NO_DEPS", "QUIET", "VERBOSE", "LOG")
"""Settings of pip (PIP_*) that would send our layer elsewhere or change what we read; all others are honoured."""

_UNREACHABLE = re.compile(
    r"Retrying \(Retry\(|Max retries exceeded|Could not fetch URL \S+ (?!404 )|Read timed out|Connection broken|"
    r"ConnectionResetError|ProxyError"
)
"""What pip logs (with -vv) where the index did not answer; that it has no such project is a 404 and no trouble."""

_NO_WHEEL = re.compile(r"No matching distribution found for ([\w.-]+(?:\[[^\]]*\])?(?: *[<>=!~][^;(\n]*)?)")
_RUN = """
import runpy, sys
sys.path[:] = [path for path in sys.path if not path.rstrip("/").endswith(("site-packages", "dist-packages"))]
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""pip imports some modules late, where they are there. What it has just unpacked must not be among them."""
_BUNDLES = "/usr/share/python-wheels"  # where Debian keeps the wheels that ensurepip has elsewhere


class NoWheel(ImageFault):
    """The index has no wheel for ``requirement`` that fits the Python."""

    def __init__(self, requirement: str, message: str) -> None:
        super().__init__(message)
        self.requirement = requirement


def resolve(
    python: Path, requirements: Sequence[str], constraints: Sequence[str], cwd: Path, links: Path | None = None
) -> tuple[Pin, ...]:
    """The wheels that answer ``requirements`` and all they need, sorted; nothing is installed.

    ``cwd`` is an empty scratch directory; ``links`` a folder of wheels built by us. Raises NoWheel, ImageFault where
    the versions contradict each other, EnvironmentFault where the index cannot be reached.
    """
    bound = cwd / "constraints.txt"
    bound.write_text("".join(f"{line}\n" for line in constraints))
    report = cwd / "report.json"
    arguments = ["--dry-run", "--ignore-installed", "--report", str(report), "--constraint", str(bound)]
    _install(python, [*arguments, *_find(links), "--", *requirements], cwd)
    pins = []
    for item in json.loads(report.read_text())["install"]:
        archive = item["download_info"].get("archive_info", {})
        sha256 = archive.get("hashes", {}).get("sha256") or archive.get("hash", "").removeprefix("sha256=")
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise ImageFault(f"the index gives no sha256 for {name} {version}")
        pins.append(Pin(str(canonicalize_name(name)), version, sha256))
    return tuple(sorted(pins))


def install(python: Path, pins: Sequence[Pin], cwd: Path, links: Path | None = None) -> None:
    """Unpack exactly ``pins`` into the environment ``python`` belongs to. Raises like :func:`resolve`."""
    pinned = cwd / "pins.txt"
    pinned.write_text("".join(f"{pin}\n" for pin in pins))
    arguments = ["--no-deps", "--require-hashes", "--no-compile", "--no-warn-script-location", *_find(links)]
    _install(python, [*arguments, "-r", str(pinned)], cwd)


def _find(links: Path | None) -> list[str]:
    return ["--find-links", str(links)] if links else []


def _install(python: Path, arguments: Sequence[str], cwd: Path) -> None:
    common = ["install", "--only-binary=:all:", "--no-input", "--no-user", "--disable-pip-version-check",
              "--progress-bar=off", "--no-color", "-vv", *shlex.split(setting("pip_args"))]
    env = {name: value for name, value in os.environ.items()
           if name.removeprefix("PIP_") not in _UNWANTED and not name.startswith("PYTHON")}
    command = [str(python), "-I", "-c", _RUN, str(_runner(cwd)), *common, *arguments]
    done = subprocess.run(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        raise _fault((done.stdout + b"\n" + done.stderr).decode(errors="replace"))


def _fault(log: str) -> EnvironmentFault:
    log = re.sub(r"(\w+://)[^/\s@]+@", r"\1****@", log)
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    what = re.sub(r"\(from versions: .*, ((?:[^,]*, ){3})", r"(from versions: …, \1", "; ".join(errors))
    what = what or log.strip()[-400:]
    if trouble := _UNREACHABLE.search(log):
        line = log[log.rfind("\n", 0, trouble.start()) + 1:].split("\n", 1)[0].strip()
        return EnvironmentFault(f"the Python index could not be reached: {line[:400]}")
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return EnvironmentFault(f"the disk is full: {what}")
    if found := _NO_WHEEL.search(log):
        return NoWheel(found[1].strip(), what)
    return ImageFault(f"pip could not prepare the requirements: {what}")


def _runner(cwd: Path) -> Path:
    """pip's own entry for running under another Python than it is installed in."""
    if (folder := _installed()) is None:
        # No pip anywhere: the one that comes with Python as a wheel, unpacked for this one call.
        bundle = next(iter(sorted(_bundled(), reverse=True)), None)
        if bundle is None:
            raise ImageFault("no pip was found to fetch test tools with. Run 'python -m ensurepip', or install pip")
        with zipfile.ZipFile(bundle) as wheel:
            wheel.extractall(cwd / "pip")
        folder = cwd / "pip" / "pip"
    return folder / "__pip-runner__.py"


@cache
def _installed() -> Path | None:
    spec = importlib.util.find_spec("pip")
    if spec and spec.origin and (folder := Path(spec.origin).parent).joinpath("__pip-runner__.py").is_file():
        return folder
    base = Path(sys.base_prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for folder in (base / "site-packages" / "pip", Path("/usr/lib/python3/dist-packages/pip")):
        if (folder / "__pip-runner__.py").is_file():
            return folder
    return None


def _bundled() -> list[Path]:
    spec = importlib.util.find_spec("ensurepip")
    folders = [Path(_BUNDLES)]
    if spec and spec.origin:
        folders.append(Path(spec.origin).parent / "_bundled")
    return [wheel for folder in folders for wheel in folder.glob("pip-*.whl")]
