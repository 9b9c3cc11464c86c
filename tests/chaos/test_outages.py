"""What a run is executed on fails for a while: its database, its disk, its clock; every attempt counts once anyway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import soundness
from pgserver import awaited
from smalldisk import on_small_disk
from soundness import Void, assert_sound
from woodshed.errors import UsageError
from woodshed.services.benching.postgres import binaries, unprivileged
from woodshed.services.home import opened

FAKETIME = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), *Path("/usr/lib").glob("faketime/libfaketime.so.1")]


class Server:
    """A PostgreSQL that can be crashed and started again; without fsync nothing would survive that, so it has it."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder, self.user = programs, folder, unprivileged()
        if self.user:
            os.chown(folder, self.user["user"], self.user["group"])
        self.run("initdb", "-D", "data", "-U", "woodshed", "-A", "trust", "-E", "UTF8", "--locale=C")
        self.process = self.start()
        with psycopg.connect(host=str(folder), user="woodshed", dbname="postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE crashes")
        self.url = f"postgresql://woodshed@/crashes?host={folder}"

    def run(self, program: str, *words: str) -> None:
        subprocess.run([self.programs / program, *words], check=True, cwd=self.folder, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, env={"PATH": os.defpath, "LC_ALL": "C"}, **self.user)

    def start(self) -> subprocess.Popen[bytes]:
        options = ["--listen_addresses=", f"--unix_socket_directories={self.folder}"]
        self.process = subprocess.Popen([self.programs / "postgres", "-D", "data", *options], cwd=self.folder,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        env={"PATH": os.defpath, "LC_ALL": "C"}, **self.user)
        awaited(self.folder)
        return self.process

    def stop(self, how: signal.Signals) -> None:
        """SIGQUIT is ``pg_ctl stop -m immediate``: no checkpoint, every session is cut off."""
        self.process.send_signal(how)
        self.process.wait()


@pytest.fixture
def server() -> Iterator[Server]:
    """One of the test's own; skips by name where there is none."""
    try:
        programs = binaries()
    except UsageError as missing:
        pytest.skip(str(missing))
    with tempfile.TemporaryDirectory(prefix="wscrash", ignore_cleanup_errors=True) as folder:
        made = Server(programs, Path(folder))
        try:
            (Path(folder) / "log").touch()
            yield made
        finally:
            made.stop(signal.SIGINT)


@pytest.mark.slow
def test_the_server_crashes_in_the_middle(
    server: Server, new_home: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at once and started again three times, with two workers at work: they go on, and nothing counts twice."""
    monkeypatch.setenv("WOODSHED_DATABASE_URL", server.url)
    with opened(new_home()) as home:
        nothing = soundness.made(home, tmp_path, monkeypatch)
        try:
            run = nothing.submit("sleeps:0.3", attempts=60)
            workers = [nothing.start(slots=2) for _ in range(2)]
            for left in (50, 35, 20):
                nothing.until(lambda left=left: home.store.queue.left(run) <= left)  # type: ignore[misc]
                server.stop(signal.SIGQUIT)
                time.sleep(1.0)
                server.start()
            for worker in workers:
                told, errors = worker.communicate(timeout=600)
                assert worker.returncode == 0, (told, errors)
            nothing.finish()
            assert_sound(home, run)
            assert soundness.broken(home, run) == []
        finally:
            nothing.close()


@pytest.fixture
def nothing(new_home: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Void]:
    """Attempts that do nothing, on SQLite."""
    with opened(new_home()) as home:
        made = soundness.made(home, tmp_path, monkeypatch)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.slow
def test_the_clock_jumps(nothing: Void, tmp_path: Path) -> None:
    """A day ahead, then two back, under a worker's feet: it is not taken for dead, no run is late, all counts once."""
    if not FAKETIME:
        pytest.skip("no libfaketime to move a clock with: apt-get install faketime")
    clock = tmp_path / "clock"
    clock.write_text("+0\n")
    site = tmp_path / "sleeping"  # libfaketime answers Python's sleep, to a moment of the monotonic clock, with EINVAL
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import select, time\ntime.sleep = lambda s: select.select([], [], [], s) and None\n")
    nothing.env |= {"LD_PRELOAD": str(FAKETIME[0]), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1",
                    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                    "PYTHONPATH": f"{site}:{nothing.env.get('PYTHONPATH', '')}".rstrip(":")}
    run = nothing.submit("sleeps:0.3", "stumbles", attempts=12, run_s=7200.0)
    workers = [nothing.start(slots=2) for _ in range(2)]
    for left, jump in ((18, "+1d"), (10, "-1d")):
        nothing.until(lambda left=left: nothing.home.store.queue.left(run) <= left)  # type: ignore[misc]
        clock.write_text(f"{jump}\n")
    nothing.until(lambda: nothing.home.store.queue.left(run) <= 2)
    clock.write_text("+0\n")
    for worker in workers:
        told, errors = worker.communicate(timeout=600)
        assert worker.returncode == 0, (told, errors)
    nothing.finish()
    assert_sound(nothing.home, run)


FULL = """
import json, os, subprocess, sys, time
from pathlib import Path
home, fill = Path(os.environ["WOODSHED_HOME"]), Path(os.environ["WOODSHED_HOME"]) / "fill"
words = [sys.executable, "-m", "woodshed"]
task, engine = sys.argv[1], ["--engine", "void", "--verifier", "void"]
run = json.loads(subprocess.run([*words, "run", task, "-a", "sleeps:0.2", "-n", "40", *engine, "--detach", "--json"],
                                check=True, capture_output=True, text=True).stdout)["run"]
worker = subprocess.Popen([*words, "worker", "--slots", "2", "--until-empty"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True)
def done():
    shown = subprocess.run([*words, "groups", run, "--json"], capture_output=True, text=True).stdout
    return json.loads(shown)["groups"][0]["done"] if shown else 0
while done() < 5:
    time.sleep(0.2)
with fill.open("wb") as file:
    try:
        while True:
            file.write(b"x" * 65536)
            file.flush()
    except OSError:
        pass
told = ""
while "disk is full" not in told:
    told += worker.stderr.readline()
fill.unlink()
worker.stderr.close()
worker.wait()
subprocess.run([*words, "runs", "open", run], capture_output=True)
subprocess.run([*words, "worker", "--slots", "2", "--until-empty"], check=True, capture_output=True)
sys.path.insert(0, sys.argv[2])
from soundness import assert_sound
from woodshed.services.home import opened
with opened() as opened_home:
    assert_sound(opened_home, run)
"""


@pytest.mark.slow
def test_the_disk_is_full_for_a_while(nothing: Void, tmp_path: Path) -> None:
    """Nothing that could not be written counts; with room again the run goes on to its end."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = tmp_path / "full.py"
    script.write_text(FULL)
    command = [*on_small_disk(disk, "48m"), sys.executable, str(script)]
    done = subprocess.run([*command, str(nothing.task), str(soundness.TESTS)], capture_output=True, text=True,
                          env={**nothing.env, "WOODSHED_HOME": str(disk / "home")}, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
