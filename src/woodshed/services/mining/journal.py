"""The journal of a repository's mining: what was found of each commit, a line each, so that nothing is done twice.

::

    HOME/mining/<repository>-<key>/
      journal.jsonl      append-only; a line that a kill cut short is no line
      lock               held by the one process that mines this repository
      tasks/<name>/      kept tasks, whole, from which the folder of --out is filled
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from woodshed.errors import StoreFault, UsageError
from woodshed.model import Record
from woodshed.tasks.mine import Ran, Rejection, slug

VERSION = 1
"""Of what is mined and how: another version begins anew."""


class Kept(Record):
    """A commit that became a task: its folder's name, what its runs said, and calibration where it was asked."""

    task: str
    digest: str
    fail_to_pass: int
    pass_to_pass: int
    unstable: int = 0
    label: str | None = None
    strength: float | None = None
    notes: tuple[str, ...] = ()


class Journal:
    """What is known of the commits of one repository, and how to add to it. One process at a time."""

    def __init__(self, folder: Path, descriptor: int, stamp: str) -> None:
        self.folder, self._descriptor, self._stamp = folder, descriptor, stamp
        self.rejections: dict[str, Rejection] = {}
        self.kept: dict[str, Kept] = {}
        self._runs: dict[tuple[str, str], list[Ran]] = {}
        self._unbuildable: dict[tuple[str, str], str] = {}
        for line in _lines(descriptor):
            self._learn(line)

    def runs(self, commit: str, plan: str) -> list[Ran]:
        """The finished runs of a commit's tests under one plan (requirements and scope), in order."""
        return list(self._runs.get((commit, plan), ()))

    def unbuildable(self, commit: str, plan: str) -> str | None:
        """Why a plan's environment could not be built; None where that is not known."""
        return self._unbuildable.get((commit, plan))

    def add_rejection(self, commit: str, rejection: Rejection) -> None:
        """A commit is not kept."""
        self._append("rejected", commit, rejection.to_json())

    def add_kept(self, commit: str, kept: Kept) -> None:
        """A commit is kept; its folder is whole by now."""
        self._append("kept", commit, kept.to_json())

    def add_run(self, commit: str, plan: str, ran: Ran) -> None:
        """One run has ended."""
        self._append("ran", commit, {"plan": plan, "ran": ran.to_json()})

    def add_unbuildable(self, commit: str, plan: str, why: str) -> None:
        """A plan's environment cannot be built."""
        self._append("unbuildable", commit, {"plan": plan, "why": why})

    def _append(self, kind: str, commit: str, data: Any) -> None:
        entry = {"stamp": self._stamp, "kind": kind, "commit": commit, "data": data}
        text = json.dumps(entry) + "\n"
        try:
            os.write(self._descriptor, text.encode())
        except OSError as error:
            raise StoreFault(f"the journal in {self.folder} could not be written: {error}") from error
        self._learn(text.encode())

    def _learn(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            if entry["stamp"] != self._stamp:
                return
            commit, data = entry["commit"], entry["data"]
            match entry["kind"]:
                case "rejected":
                    self.rejections[commit] = Rejection.model_validate(data)
                    self.kept.pop(commit, None)
                case "kept":
                    self.kept[commit] = Kept.model_validate(data)
                case "ran":
                    self._runs.setdefault((commit, data["plan"]), []).append(Ran.model_validate(data["ran"]))
                case "unbuildable":
                    self._unbuildable[commit, data["plan"]] = str(data["why"])
        except (ValueError, KeyError, TypeError):
            return  # cut short by a kill, or of another version: what it would have told is found again


@contextmanager
def opened(home: Path, repo: Path, name: str, options: str, *, anew: bool = False) -> Iterator[Journal]:
    """The journal of ``repo``. ``options`` are what its findings depend on; ``anew`` forgets them all.

    Raises UsageError while another process mines it, StoreFault.
    """
    key = hashlib.sha256(os.fsencode(repo.resolve())).hexdigest()[:12]
    folder = home / "mining" / f"{slug(name)}-{key}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreFault(f"the journal in {folder} cannot be opened: {error}") from error
    try:
        try:
            # No flock: a sandbox's forked processes would share it and outlive us by a moment.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError("is being mined by another process", file=repo, remedy="Wait for it to end.") from None
        descriptor = os.open(folder / "journal.jsonl", os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if anew:
                os.ftruncate(descriptor, 0)
            yield Journal(folder, descriptor, hashlib.sha256(f"{VERSION}\0{options}".encode()).hexdigest()[:16])
        finally:
            os.close(descriptor)
    finally:
        os.close(lock)


def _lines(descriptor: int) -> list[bytes]:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        content = file.read()
    if content and not content.endswith(b"\n"):
        os.write(descriptor, b"\n")
    return content.splitlines()
