"""A private PostgreSQL for tests: its own folder, a socket instead of a port, an unprivileged user, gone afterwards.

Import both fixtures where they are used: ``from pgserver import postgresql_server, postgresql_url``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import psycopg.sql
import pytest

HOW = "no PostgreSQL server here: apt-get install postgresql (or put initdb and postgres on PATH)"
_names = count(1)


def _binaries() -> Path | None:
    found = [Path(path).parent for path in (shutil.which("initdb"),) if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name))
    return next((path for path in found if (path / "initdb").exists() and (path / "postgres").exists()), None)


def _user() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: then some user who owns nothing."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.skip("no user 'postgres' or 'nobody' to run PostgreSQL as: adduser --system postgres")


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Path]:
    """The folder whose socket a fresh server listens on; skips by name where there is none."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip(HOW)
    folder = Path(tempfile.mkdtemp(prefix="wspg"))
    user = _user()
    if user:
        os.chown(folder, user["user"], user["group"])
    # Nothing of this process's environment: tests know what a run left behind by the home that its environment names.
    env = {"PATH": os.defpath, "LC_ALL": "C"}
    run: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL, "env": env, **user}
    server: subprocess.Popen[bytes] | None = None
    try:
        with (folder / "log").open("wb") as log:
            run |= {"stdout": log, "stderr": log}
            initdb = ["-D", "data", "-U", "woodshed", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"]
            subprocess.run([str(binaries / "initdb"), *initdb], check=True, **run)
            options = ["listen_addresses=", f"unix_socket_directories={folder}", "fsync=off", "shared_buffers=16MB"]
            flags = [part for option in options for part in ("-c", option)]
            server = subprocess.Popen([str(binaries / "postgres"), "-D", "data", *flags], **run)
        _await(folder)
        yield folder
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _await(folder: Path) -> None:
    for _ in range(600):
        try:
            psycopg.connect(host=str(folder), user="woodshed", dbname="postgres").close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError((folder / "log").read_text())


@pytest.fixture
def postgresql_url(postgresql_server: Path) -> str:
    """A URL of an empty database of its own."""
    name = f"test{next(_names)}"
    with psycopg.connect(f"host={postgresql_server} user=woodshed dbname=postgres", autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    return f"postgresql://woodshed@/{name}?host={postgresql_server}"
