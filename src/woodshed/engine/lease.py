"""A process that works on runs holds one lock for its life; who resumes a run asks whether its owner's lock is free.

The lock is a POSIX record lock on ``HOME/locks/<executor>.lock``. The kernel drops it the moment the process ends,
however it ends. It is no ``flock`` on purpose: that one is shared with forked children (a fork server, a sandbox's
first process), so a killed owner would seem alive until the last of them is gone. The price: closing any descriptor of
the file inside the owner drops the lock, so this module alone opens these files, and never its own process's.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from woodshed.errors import StoreFault, UsageError
from woodshed.model import Run, RunState
from woodshed.model.event import now
from woodshed.store import Store
from woodshed.store.ids import token

_PROBES = 3  # two processes that probe or sweep at once can mistake each other for the owner, for microseconds
_held: set[Path] = set()


@dataclass(frozen=True, slots=True)
class Owner:
    """A living process: its pid and host, and when it started (UTC, ISO 8601). None where it cannot be known."""

    executor: str
    pid: int | None = None
    host: str | None = None
    started: str | None = None

    def __str__(self) -> str:
        if self.pid is None:
            return f"executor {self.executor}"
        return f"process {self.pid} on {self.host} (since {self.started})"


class Lease:
    """This process is alive and its name is ``executor``, until ``release`` or the end of the process.

    ``executor`` is unique for ever: ``<home>-<random>``, where ``<home>`` marks the home it lives in. Lock files whose
    process is gone are swept. Raises StoreFault when the folder cannot be written.
    """

    def __init__(self, home: Path) -> None:
        try:
            self.executor = f"{_home_id(home)}-{token(10)}"
            self._path = _folder(home) / f"{self.executor}.lock"
            _sweep(self._path.parent)
            self._descriptor: int | None = _lock(self._path)
        except OSError as error:
            raise StoreFault(f"taking the lock of this process in {home}: {error}") from error
        _held.add(self._path)

    def release(self) -> None:
        """Say that this process works no more. Idempotent."""
        if self._descriptor is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self._path)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()


def owner(home: Path, executor: str) -> Owner | None:
    """Who holds the lock of ``executor``; None when nobody does, so that its runs may be taken over.

    An executor of another home is taken to be alive: its lock cannot be seen from here.
    """
    path = _folder(home) / f"{executor}.lock"
    if executor.partition("-")[0] != _home_id(home):
        return Owner(executor)
    if path in _held:
        return Owner(executor, os.getpid(), platform.node())
    text = ""
    for probe in range(_PROBES):
        time.sleep(0.02 * probe)
        found = _probe(path)
        if found is None:
            return None
        text = found
    with suppress(ValueError, TypeError):
        return Owner(executor, **json.loads(text))
    return Owner(executor)


def of_this_home(home: Path, executor: str) -> bool:
    """Whether the process lived in this home: one of another may have had another machine."""
    return executor.startswith(f"{_home_id(home)}-")


def claim(store: Store, run_id: str, lease: Lease, home: Path) -> Run:
    """The run, owned by this process from now on; its lost executions are marked. ``last`` names the newest run.

    A finished run is returned as it is: there is nothing to own. Raises UsageError naming the living owner and the
    remedy, or when another process was faster.
    """
    run = store.run(run_id)
    if run.executor == lease.executor or run.state is RunState.FINISHED:
        return run
    refuse_living(run, home)
    if not store.take_over(run.id, lease.executor, expected=run.executor):
        raise UsageError(
            f"{run.id} was just taken over by another process", field="run", remedy="Watch it with 'woodshed show'."
        )
    return store.run(run.id)


def refuse_living(run: Run, home: Path) -> None:
    """Nobody works on the run. Raises UsageError naming its living owner and the remedy."""
    living = owner(home, run.executor) if run.executor else None
    if living is not None:
        kill = f"Wait for it, or end it first (kill {living.pid})." if living.pid else "Resume it in its own home."
        raise UsageError(f"{run.id} is still being worked on by {living}", field="run", remedy=kill)


def _folder(home: Path) -> Path:
    folder = home / "locks"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _home_id(home: Path) -> str:
    """A random word made once for a home, so that executors of different homes (or machines) can be told apart."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = home / "id"
    with suppress(FileNotFoundError):
        return path.read_text().strip()
    draft = path.with_name(f"id.{token(10)}")
    draft.write_text(token(6))
    with suppress(FileExistsError):
        os.link(draft, path)  # the first one wins, whole
    draft.unlink()
    return path.read_text().strip()


def _lock(path: Path) -> int:
    """Make, lock and fill the file; again, should a sweeping process have removed it in between."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                owned = {"pid": os.getpid(), "host": platform.node(), "started": now().isoformat(timespec="seconds")}
                os.write(descriptor, json.dumps(owned).encode())
                return descriptor
        os.close(descriptor)


def _probe(path: Path) -> str | None:
    """The file's text if someone holds its lock, else None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except (BlockingIOError, PermissionError):  # POSIX allows either answer
        return os.read(descriptor, 4096).decode(errors="replace")
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove the files of processes that are gone."""
    for path in folder.glob("*.lock"):
        if path in _held:
            continue
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)
