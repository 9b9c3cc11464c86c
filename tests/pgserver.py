"""A private PostgreSQL for tests: its own folder, a socket instead of a port, an unprivileged user, gone afterwards.

Import both fixtures where they are used: ``from pgserver import postgresql_server, postgresql_url``.
"""

from __future__ import annotations

import os
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

from woodshed.errors import UsageError
from woodshed.services.benching.postgres import binaries, unprivileged

_names = count(1)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Path]:
    """The folder whose socket a fresh server listens on; skips by name where there is none."""
    try:
        programs, user = binaries(), unprivileged()
    except UsageError as missing:
        pytest.skip(str(missing))
    folder = Path(tempfile.mkdtemp(prefix="wspg"))
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
            subprocess.run([str(programs / "initdb"), *initdb], check=True, **run)
            options = ["listen_addresses=", f"unix_socket_directories={folder}", "fsync=off", "shared_buffers=16MB"]
            flags = [part for option in options for part in ("-c", option)]
            server = subprocess.Popen([str(programs / "postgres"), "-D", "data", *flags], **run)
        awaited(folder)
        yield folder
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def awaited(folder: Path) -> None:
    """It answers on its socket in ``folder``. Raises RuntimeError with its log."""
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
