"""The ``host`` image: the host's /usr read-only over a small skeleton that we generate; nothing else of the host.

The skeleton holds mount points, a minimal /etc of world-readable files that programs of /usr need to start, and the
links of a merged /usr. Never in it: shadow, ssl/private, ld.so.preload, system-wide git or shell configuration, homes.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from pathlib import Path

from woodshed.errors import ImageFault
from woodshed.sandbox.images.python import Interpreter
from woodshed.sandbox.images.rootfs import Bind
from woodshed.sandbox.images.tree import Entry, Plan, place

PATH = "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV = {
    "PATH": PATH,
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "VIRTUAL_ENV": "/opt/venv",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}
DIRECTORIES = {
    "dev": 0o755, "home": 0o755, "logs": 0o755, "logs/agent": 0o777, "logs/artifacts": 0o777, "logs/verifier": 0o755,
    "mnt": 0o755, "opt": 0o755, "proc": 0o555, "root": 0o711, "run": 0o755, "srv": 0o755, "sys": 0o555, "tmp": 0o1777,
    "usr": 0o755, "var/cache": 0o755, "var/lib": 0o755, "var/log": 0o755, "var/tmp": 0o1777, "workspace": 0o755,
}
_GENERATED = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "hostname": "sandbox\n",
    "hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "resolv.conf": "",
    "shells": "/bin/sh\n/bin/bash\n",
    "profile": f"export PATH={PATH}\n[ -n \"$PS1\" ] && PS1='\\u@\\h:\\w\\$ '\numask 022\n",
}
_COPIED = (
    "alternatives", "debian_version", "java-*-openjdk", "ld.so.cache", "locale.alias", "localtime", "magic",
    "mime.types", "os-release", "pki/ca-trust/extracted", "pki/tls/certs", "protocols", "python3*", "rpc", "services",
    "ssl/certs", "ssl/openssl.cnf", "terminfo", "crypto-policies",
)
_MERGED = ("bin", "lib", "lib32", "lib64", "libo32", "libx32", "sbin")
_DATABASES = ("/usr/lib/os-release", "/var/lib/dpkg/status", "/lib/apk/db/installed")


def skeleton(python: Interpreter, host: Path = Path("/")) -> tuple[Plan, tuple[Bind, ...]]:
    """The skeleton's plan and what is bound over it. Raises ImageFault where ``host`` has no /usr or shell."""
    if not (host / "usr").is_dir() or not (host / "bin/sh").exists():
        raise ImageFault(f"the host image needs {host / 'usr'} and {host / 'bin/sh'}; use an image 'dir:PATH' here")
    plan: Plan = {}
    for path, mode in DIRECTORIES.items():
        place(plan, path, Entry("directory", mode))
    for name, text in _GENERATED.items():
        place(plan, f"etc/{name}", Entry("file", 0o644, text.encode()))
    place(plan, "etc/mtab", Entry("link", 0o777, "/proc/self/mounts"))
    for pattern in _COPIED:
        for source in sorted((host / "etc").glob(pattern)):
            _copy(plan, source, str(source.relative_to(host)))
    binds = [Bind(host / "usr", "/usr"), *_unmerged(plan, host)]
    if python.bound:
        place(plan, str(python.base).lstrip("/"), Entry("directory"))
        binds.append(Bind(python.base, str(python.base)))
    return plan, tuple(binds)


def _unmerged(plan: Plan, host: Path) -> list[Bind]:
    """Links of a merged /usr go into the plan; real directories of an unmerged one are bound."""
    binds = []
    for name in _MERGED:
        path = host / name
        if path.is_symlink():
            place(plan, name, Entry("link", 0o777, str(path.readlink())))
        elif path.is_dir():
            place(plan, name, Entry("directory"))
            binds.append(Bind(path, f"/{name}"))
    return binds


def _copy(plan: Plan, source: Path, path: str) -> None:
    """Plan a host path: links as links, only world-readable files and directories, nothing special."""
    mode = source.lstat().st_mode
    if stat.S_ISLNK(mode):
        place(plan, path, Entry("link", 0o777, str(source.readlink())))
    elif stat.S_ISREG(mode) and mode & stat.S_IROTH:
        place(plan, path, Entry("file", 0o755 if mode & stat.S_IXUSR else 0o644, source))
    elif stat.S_ISDIR(mode) and mode & stat.S_IROTH and mode & stat.S_IXOTH:
        place(plan, path, Entry("directory"))
        for child in sorted(source.iterdir()):
            _copy(plan, child, f"{path}/{child.name}")


def identity(python: Interpreter, host: Path = Path("/")) -> str:
    """Names what is bound, whose content is too large to hash: the distribution, its installed packages, the Python.

    Where no package database is known, the change times of /usr's main directories stand for it.
    """
    total = hashlib.sha256(f"{platform.machine()}\n{python.tag}\n{python.base}\n".encode())
    known = False
    for database in _DATABASES:
        path = host / database.lstrip("/")
        if path.is_file():
            known |= "os-release" not in database
            total.update(path.read_bytes())
    if not known:
        for name in ("bin", "lib", "lib64", "share"):
            if (path := host / "usr" / name).exists():
                total.update(f"{name} {os.stat(path).st_mtime_ns}\n".encode())  # noqa: PTH116 (symmetry with ns)
    return total.hexdigest()


def shell(host: Path = Path("/")) -> str:
    """``/bin/bash`` where the host has it, else ``/bin/sh``."""
    return "/bin/bash" if (host / "bin/bash").exists() else "/bin/sh"
