"""A PostgreSQL of the benchmark's own: in a folder, on a socket, gone afterwards; never as root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from woodshed.errors import EnvironmentFault, UsageError
from woodshed.services.benching.bound import bound

REMEDY = "apt-get install postgresql, or put its initdb and postgres on PATH; or leave PostgreSQL out."


@contextmanager
def private_server(*flags: str) -> Iterator[tuple[str, int]]:
    """The URL of an empty database, and the server's process. ``flags`` are settings (``name=value``) beside ours.

    It writes as a server does that keeps what it was told (``fsync`` on). Raises UsageError where none is installed.
    """
    programs, user = binaries(), unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="wsbench"))
    if user:
        os.chown(folder, user["user"], user["group"])
    run: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL,
                           "stderr": subprocess.DEVNULL, "env": {"PATH": os.defpath, "LC_ALL": "C"}, **user}
    server: subprocess.Popen[bytes] | None = None
    try:
        subprocess.run([programs / "initdb", "-D", "data", "-U", "woodshed", "-A", "trust", "-E", "UTF8",
                        "--locale=C"], check=True, **run)
        asked = ("listen_addresses=", f"unix_socket_directories={folder}", *flags)
        server = subprocess.Popen([programs / "postgres", "-D", "data", *(f"--{flag}" for flag in asked)], **run)
        bound(server, signal.SIGQUIT)
        create: list[str | Path] = [programs / "psql", "-qh", folder, "-U", "woodshed", "-c", "CREATE DATABASE bench",
                                    "postgres"]
        for _ in range(600):
            if subprocess.run(create, check=False, **run).returncode == 0:
                break
            time.sleep(0.05)
        else:
            raise EnvironmentFault("a PostgreSQL of our own does not answer")
        yield f"postgresql://woodshed@/bench?host={folder}", server.pid
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def binaries() -> Path:
    """Where the server's programs stand. Raises UsageError where they are not."""
    found = [Path(path).parent for path in (shutil.which("initdb"),) if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name))
    for path in found:
        if all((path / name).exists() for name in ("initdb", "postgres", "psql")):
            return path
    raise UsageError("no PostgreSQL server here", remedy=REMEDY)


def unprivileged() -> dict[str, Any]:
    """Who runs it, for subprocess: PostgreSQL refuses root, then some user who owns nothing. Raises UsageError."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise UsageError("PostgreSQL does not run as root, and there is no user for it", remedy="adduser --system postgres")
