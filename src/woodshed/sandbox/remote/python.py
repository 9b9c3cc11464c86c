"""A Python that runs our PID 1 in any container: the few files of this process's own that it loads, in one folder.

It is started by its own loader with its own libraries, so the image may have another libc, or none. The folder holds
nothing else, so a sandbox sees nothing of the host's packages.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from woodshed.errors import EnvironmentFault
from woodshed.sandbox import native, remote

TOP = "/.woodshed"
"""Where the folder stands in a container."""
_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
_MAJOR = re.compile(r"^(.*\.so\.\d+)\..*$")
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); import boot; boot.main(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A folder to be bound at :data:`TOP`, read-only, and what is to be started there."""

    folder: Path
    argv: tuple[str, ...]
    env: dict[str, str]


def interpreter(folder: Path) -> Interpreter:
    """Fill the new ``folder`` with this process's Python and our parts. Blocking.

    Raises EnvironmentFault where that cannot be told or copied.
    """
    parts = folder / "parts"
    try:
        for module in (native, remote):
            place = Path(str(module.__file__)).parent
            shutil.copytree(place / "inside", parts / place.name / "inside",
                            ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(Path(str(remote.__file__)).parent / "inside" / "boot.py", parts / "boot.py")
        modules, maps = _loaded(parts)
        standard = Path(sysconfig.get_path("stdlib")).resolve()
        for file in modules:
            path = Path(file).resolve()
            if path.is_relative_to(standard):
                _copy(path, folder / "lib" / _NAME / path.relative_to(standard))
        loader = next((path for path in maps if path.name.startswith("ld")), None)
        if loader is None:
            raise EnvironmentFault("this Python is a static one: it has no loader that could start it elsewhere")
        _copy(loader, folder / "loader")
        _copy(Path(sys.executable).resolve(), folder / "bin" / _NAME)
        for path in maps - {loader}:
            if ".so" in path.name and not path.is_relative_to(standard):
                for name in {path.name, _MAJOR.sub(r"\1", path.name)}:  # a loader asks for libffi.so.8, not .8.1.2
                    _copy(path, folder / "libraries" / name)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise EnvironmentFault(f"this process's Python cannot be copied for a container: {error}") from error
    argv = (f"{TOP}/loader", "--library-path", f"{TOP}/libraries", f"{TOP}/bin/{_NAME}", "-S", "-s", "-P", "-B",
            "-X", "utf8", "-c", _BOOT, f"{TOP}/parts")
    return Interpreter(folder, argv, {"PYTHONHOME": TOP, "LC_ALL": "C.UTF-8"})


def _loaded(parts: Path) -> tuple[list[str], set[Path]]:
    """Files of the modules that PID 1 loads, and what is mapped then."""
    look = ("import sys; sys.path.insert(0, sys.argv[1]); import boot; boot.parents(sys.argv[1]);"
            "import woodshed.sandbox.remote.inside.serve, encodings.ascii, encodings.latin_1, json;"
            "print(json.dumps([[f for m in list(sys.modules.values()) if (f := getattr(m, '__file__', None))],"
            " open('/proc/self/maps').read()]))")
    said = subprocess.run([sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", look, str(parts)], check=True,
                          capture_output=True, env={}, timeout=60).stdout
    modules, maps = json.loads(said)
    fields = [line.split(None, 5) for line in maps.splitlines()]
    mapped = {Path(line[5]) for line in fields if len(line) == 6 and line[5].startswith("/")}
    return modules, {path for path in mapped if ".so" in path.name}


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source.resolve(), target)
