"""What a command's end looks like to a model."""

from __future__ import annotations

import posixpath
from pathlib import Path

from woodshed.harness.clip import decoded
from woodshed.interfaces import ExecResult, ToolResult
from woodshed.model import Task

KEPT_BYTES = 1_000_000  # of each stream; the model sees a part of it, and may read the rest
_SPOOLED_BYTES = 16_000_000  # of a longer one, where the sandbox's limits let the host keep it


def shown(result: ExecResult) -> ToolResult:
    """Both streams, stderr last; a note where the command was killed, and where not even we have all of it."""
    spool = result.spool
    out = decoded(_whole(result.stdout, spool.stdout if spool else None))
    err = decoded(_whole(result.stderr, spool.stderr if spool else None))
    if out and err and not out.endswith("\n"):
        out += "\n"
    notes = []
    if result.timed_out:
        notes.append(f"[killed: no end within {result.seconds:.0f} s; start servers in the background with '&']")
    if result.oom_killed:
        notes.append("[killed: out of memory]")
    notes += [f"[limit reached: {name}]" for name in result.limits_hit if name != "output_bytes"]  # cut output shows it
    text = out + err
    parts = [text.rstrip("\n"), *notes] if text else notes
    return ToolResult("\n".join(parts), exit_code=result.exit_code, truncated=result.truncated,
                      timed_out=result.timed_out)


def _whole(kept: bytes, spool: Path | None) -> bytes:
    """A stream, from the host's file of it where there is one."""
    if spool is None:
        return kept
    try:
        with spool.open("rb") as file:
            return file.read(_SPOOLED_BYTES)
    except OSError:  # it went with its sandbox
        return kept


def absolute(task: Task, path: str) -> str:
    """``path`` as the sandbox names it: relative ones start at the task's workdir."""
    return posixpath.join(task.environment.workdir, path)
