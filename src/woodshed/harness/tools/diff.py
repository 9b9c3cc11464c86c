"""diff: what the agent changed since the start, as a unified diff."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import posixpath
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from woodshed.errors import StoreFault
from woodshed.harness.kit import Kit
from woodshed.interfaces import Reach, Sandbox, ToolResult, ToolSpec
from woodshed.model import Change, ChangeSet, Task
from woodshed.model.diff import described

_FILE_BYTES = 500_000
_ALL_BYTES = 20_000_000
_SHOWN_CHARS = 160_000


@dataclass(frozen=True, slots=True)
class Diff:
    """Shows the changes below the working directory."""

    kit: Kit
    reach: ClassVar[Reach] = "files"
    spec = ToolSpec(
        "diff", "Show what you changed in the working directory since the start, as a unified diff.",
        {"type": "object", "properties": {}})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """The diff. Originals are the task's uploads; a file of the image shows as new."""
        kept = _Memory()
        try:
            async with asyncio.timeout(timeout_s):
                changes = await sandbox.changes(kept, roots=(self.kit.task.environment.workdir,))
                text = await asyncio.to_thread(self._text, changes, kept)
        except TimeoutError:
            return ToolResult(f"diff: not ready within {timeout_s:.0f} s; use bash instead.", 1, timed_out=True)
        return ToolResult(text or "Nothing is changed.", exit_code=0)

    def _text(self, changes: ChangeSet, kept: _Memory) -> str:
        """No more than what can be shown: an agent may have changed fifty thousand files."""
        parts, size = list[str](), 0
        for change in changes.changes:
            parts.append(self._shown(change, kept))
            size += len(parts[-1])
            if size > _SHOWN_CHARS:
                parts.append("... and more files\n")
                break
        return "".join([*parts, *(f"not captured: {reason}\n" for reason in changes.refused[:100])])

    def _shown(self, change: Change, kept: _Memory) -> str:
        return described(change, original(self.kit.task, change.path), kept.contents.get(change.sha256 or ""))


def original(task: Task, path: str) -> bytes | None:
    """What the task's uploads put at ``path`` (absolute, in the sandbox), or None. No link is followed on the host."""
    for upload in reversed(task.environment.uploads):
        rest = posixpath.relpath(path, upload.target)
        if rest == "." or not rest.startswith(".."):
            return _plain(upload.source, () if rest == "." else Path(rest).parts)
    return None


def _plain(source: Path, parts: tuple[str, ...]) -> bytes | None:
    """The regular file at ``parts`` below ``source``, opened step by step: a task's folder may hold hostile links."""
    held, how = -1, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        held = os.open(source, how)
        for part in parts:
            inner = os.open(part, how, dir_fd=held)
            os.close(held)
            held = inner
        info = os.fstat(held)
        if not stat.S_ISREG(info.st_mode) or info.st_size > _FILE_BYTES:
            return None
        with os.fdopen(held, "rb", closefd=False) as file:
            return file.read()
    except OSError:
        return None
    finally:
        if held >= 0:
            os.close(held)


@dataclass(slots=True)
class _Memory:
    """A BlobSink for one look: contents in memory, bounded; what is beyond the bound is hashed and forgotten."""

    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0

    def put(self, content: bytes | BinaryIO) -> str:
        digest, kept, rest = hashlib.sha256(), bytearray(), content
        stream = io.BytesIO(rest) if isinstance(rest, bytes) else rest
        while block := stream.read(1 << 16):
            digest.update(block)
            if len(kept) <= _FILE_BYTES:
                kept += block
        if self.size + len(kept) <= _ALL_BYTES and len(kept) <= _FILE_BYTES:
            self.contents[digest.hexdigest()] = bytes(kept)
            self.size += len(kept)
        return digest.hexdigest()

    def open(self, sha256: str) -> BinaryIO:
        if sha256 not in self.contents:
            raise StoreFault(f"{sha256} was too large to keep")
        return io.BytesIO(self.contents[sha256])
