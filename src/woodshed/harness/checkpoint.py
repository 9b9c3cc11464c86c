"""Checkpoints: the files of a sandbox, kept between two turns and checked before they are restored."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any, BinaryIO

from pydantic import ValidationError

from woodshed.errors import EnvironmentFault, SandboxDied, StoreFault
from woodshed.interfaces import BlobSink, Emit, Sandbox
from woodshed.model import ChangeSet, Checkpoint, EventKind, Past

LOST = (
    "running processes", "the state of shells", "open connections and sockets", "what was in /tmp, /run and /dev/shm",
    "owners and times of files, and set-id bits",
)
"""What no checkpoint holds: captured changes are contents, links, modes and deletions."""
_CHUNK = 1 << 20
_REFUSED = 50


@dataclass(frozen=True, slots=True)
class Restored:
    """What a sandbox begins with: a checkpoint's changes, or its own start (None). ``broken`` says which were passed

    over for want of whole blobs, and why. ``step`` counts the steps of the task before the one it was made in.
    """

    checkpoint: Checkpoint | None = None
    changes: ChangeSet | None = None
    broken: tuple[str, ...] = ()
    step: int = 0

    @property
    def held(self) -> int:
        """How many calls' effects are in it: the first ones."""
        return self.checkpoint.held if self.checkpoint else 0

    @property
    def lost(self) -> list[str]:
        """What is not as it was, in words."""
        refused = self.changes.refused[:_REFUSED] if self.changes else ()
        return [*LOST, *(f"not captured: {reason}" for reason in refused)]


async def capture(sandbox: Sandbox, blobs: BlobSink) -> tuple[ChangeSet, dict[str, Any]]:
    """All files of ``sandbox`` that differ from its start, as they were at one moment; and what it took.

    Nothing inside runs meanwhile. The changes are listed in the blob ``digest``; their contents are blobs of their own.
    Raises SandboxDied and other EnvironmentFaults, StoreFault, OSError.
    """
    started = time.perf_counter()
    processes = (await sandbox.stats()).processes
    frozen = time.perf_counter()
    try:
        await sandbox.freeze()
        changes = await sandbox.changes(blobs, roots=("/",))
    finally:
        await sandbox.thaw()
    thawed = time.perf_counter()
    digest = await asyncio.to_thread(blobs.put, json.dumps(changes.to_json(), separators=(",", ":")).encode())
    return changes, {
        "digest": digest, "files": len(changes.changes), "bytes": sum(change.size for change in changes.changes),
        "seconds": round(time.perf_counter() - started, 6), "frozen_s": round(thawed - frozen, 6),
        "processes": processes, "refused": list(changes.refused[:_REFUSED]),
    }


async def restorable(past: Past, blobs: BlobSink) -> Restored:
    """The newest checkpoint whose blobs are all there and whole; the start where there is none."""
    broken: list[str] = []
    for step, one in reversed(list(enumerate((*(earlier.past for earlier in past.earlier), past)))):
        for checkpoint in one.checkpoints:
            try:
                changes = await asyncio.to_thread(_checked, checkpoint, blobs)
            except StoreFault as fault:
                broken.append(f"the checkpoint of turn {checkpoint.turn}: {fault}")
            else:
                return Restored(checkpoint, changes, tuple(broken), step)
    return Restored(broken=tuple(broken))


async def kept(
    sandbox: Sandbox, blobs: BlobSink, emit: Emit, *, turn: int, why: str, named: set[str], over: bool = False
) -> bool:
    """Keep the sandbox's files. What an agent did to it may stand in the way, and is no fault: it is noted, and False.

    ``named`` are blobs that earlier checkpoints of this execution name, and those of this one from now on. ``over``:
    the step is. Raises SandboxDied, StoreFault.
    """
    try:
        changes, told = await capture(sandbox, blobs)
    except SandboxDied:
        raise
    except (EnvironmentFault, OSError) as error:
        emit(EventKind.NOTE, {"text": f"no checkpoint after turn {turn}: {error}"})
        return False
    if changes.over_limit is not None:
        emit(EventKind.NOTE, {"text": f"no checkpoint after turn {turn}: over {changes.over_limit}"})
        return False
    new = {told["digest"], *(change.sha256 for change in changes.changes if change.sha256)} - named
    named |= new
    emit(EventKind.CHECKPOINT, {"turn": turn, "why": why, **told, "blobs": sorted(new),
                                **({"over": True} if over else {})})
    return True


async def damage(changes: ChangeSet, blobs: BlobSink) -> str:
    """What is wrong with the contents of ``changes``, where anything is."""
    try:
        await asyncio.to_thread(_whole, changes, blobs)
    except StoreFault as fault:
        return str(fault)
    return ""


def _checked(checkpoint: Checkpoint, blobs: BlobSink) -> ChangeSet:
    """Its changes, every blob read and hashed. Raises StoreFault naming the blob. Blocking."""
    text = bytearray()
    with blobs.open(checkpoint.digest) as source:
        _digest(source, checkpoint.digest, text)
    try:
        changes = ChangeSet.model_validate(json.loads(text))
    except (ValueError, ValidationError) as error:
        raise StoreFault(f"blob {checkpoint.digest} lists no changes: {error}") from None
    _whole(changes, blobs)
    return changes


def _whole(changes: ChangeSet, blobs: BlobSink) -> None:
    for sha256 in {change.sha256 for change in changes.changes if change.sha256 is not None}:
        with blobs.open(sha256) as source:
            _digest(source, sha256)


def _digest(source: BinaryIO, sha256: str, kept: bytearray | None = None) -> None:
    found = hashlib.sha256()
    try:
        while chunk := source.read(_CHUNK):
            found.update(chunk)
            if kept is not None:
                kept += chunk
    except OSError as error:
        raise StoreFault(f"blob {sha256} cannot be read: {error.strerror or error}") from None
    if found.hexdigest() != sha256:
        raise StoreFault(f"blob {sha256} is damaged: its content has the digest {found.hexdigest()}")
