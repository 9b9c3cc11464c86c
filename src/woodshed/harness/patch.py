"""patch:FILE: applies a unified diff or a recorded set of files to the workdir, then stops. No model."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from posixpath import join

from woodshed.errors import UsageError
from woodshed.harness.patchfile import FileChange, applied, read_changes
from woodshed.harness.recorded import ONLY_CALL, recorded, stop_of
from woodshed.interfaces import Acting, Sandbox, ToolResult
from woodshed.model import StopReason

_PATHS_SHOWN = 1000
_READ_BYTES = 100_000_000


class Misfit(Exception):
    """The change cannot be made upon what stands in the workdir; the message says why."""


class Patch:
    """A harness that makes recorded changes, all or none, as root.

    Raises UsageError, when made, for a file that holds no changes, or ones that lead out of the workdir by their words.
    """

    needs_model = False
    resumable = True

    def __init__(self, file: str | Path | None) -> None:
        if not file:
            raise UsageError("patch needs a file", remedy="Write patch:FILE, with FILE a diff or a set of files.")
        self.file = Path(file)
        self.changes = read_changes(self.file)

    async def act(self, acting: Acting) -> StopReason:
        """FINISHED, or WALL. SOLUTION_FAILED where a change does not fit, or leads through a link: none is made then.

        Raises SandboxDied.
        """
        paths = sorted({_shown(path) for change in self.changes for path in (change.source, change.path)})
        arguments = {"file": self.file.name, "paths": paths[:_PATHS_SHOWN]}
        result = await recorded(acting, {"call": ONLY_CALL, "name": "patch", "arguments": arguments},
                                partial(self._make, acting), reach="files")
        acting.usage = acting.usage.model_copy(update={"turns": 1, "tool_calls": 1})
        return stop_of(result)

    async def _make(self, acting: Acting) -> ToolResult:
        workdir = acting.task.environment.workdir
        try:
            async with asyncio.timeout(acting.deadline_s):
                await _write(acting.sandbox, workdir, await _planned(acting.sandbox, workdir, self.changes))
        except Misfit as error:
            return ToolResult(_shown(f"patch: {error}; nothing was changed"), exit_code=1)
        except TimeoutError:
            return ToolResult("patch: out of time", exit_code=1, timed_out=True)
        return ToolResult("patch: all was changed", exit_code=0)


def _shown(path: str) -> str:
    """``path`` in signs that any log can hold."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8")


Plan = dict[str, tuple[bytes, int] | None]
"""Content and mode by path; None where nothing is to stand."""


async def _planned(sandbox: Sandbox, workdir: str, changes: tuple[FileChange, ...]) -> Plan:
    """What is to stand where, when all changes are made in order. Raises Misfit."""
    plan: Plan = {}
    for change in changes:
        for path in {change.path, change.source}:
            await _no_link(sandbox, workdir, path)
        before = plan[change.source] if change.source in plan else await _standing(sandbox, workdir, change.source)
        mode = change.mode or (before[1] if before else 0o644)
        if change.content is not None:
            plan[change.path] = (change.content, mode)
            continue
        if change.added and before is not None and before[0]:
            raise Misfit(f"{change.path} is there already")
        if before is None and not change.added:
            raise Misfit(f"{change.source} is not there")
        content = applied(before[0] if before else b"", change.hunks)
        if content is None:
            raise Misfit(f"{change.source} is not as the diff has it")
        if change.renamed:
            plan[change.source] = None
        plan[change.path] = None if change.deleted else (content, mode)
    return plan


async def _no_link(sandbox: Sandbox, workdir: str, path: str) -> None:
    """No part of ``path`` below the workdir is a link, or a file where a folder is needed. Raises Misfit."""
    parts = path.split("/")
    for end in range(1, len(parts) + 1):
        try:
            kind = (await sandbox.stat(join(workdir, *parts[:end]))).kind
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise Misfit(f"{path}: {error.strerror}") from None
        if kind == "symlink" or kind != ("file" if end == len(parts) else "directory"):
            raise Misfit(f"{'/'.join(parts[:end])} is a {kind}")


async def _standing(sandbox: Sandbox, workdir: str, path: str) -> tuple[bytes, int] | None:
    place = join(workdir, path)
    try:
        return await sandbox.read(place, max_bytes=_READ_BYTES), (await sandbox.stat(place)).mode & 0o777
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Misfit(f"{path}: {error.strerror}") from None


async def _write(sandbox: Sandbox, workdir: str, plan: Plan) -> None:
    """Deletions first, so that a folder can take the place of a file."""
    gone = [join(workdir, path) for path, entry in plan.items() if entry is None]
    for start in range(0, len(gone), 500):
        await sandbox.exec(["rm", "-f", "--", *gone[start : start + 500]])
    for path, entry in plan.items():
        if entry is not None:
            await sandbox.write(join(workdir, path), entry[0], mode=entry[1])
