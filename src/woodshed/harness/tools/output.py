"""What a command's end looks like to a model."""

from __future__ import annotations

import posixpath

from woodshed.harness.clip import clip, decoded
from woodshed.interfaces import ExecResult, ToolResult
from woodshed.model import Task

CHARS = 16_000  # of one tool's answer: about 4,500 tokens
KEPT_BYTES = 200_000  # of each stream, so that clipping has a head and a tail to choose from


def shown(result: ExecResult, *, limit: int = CHARS) -> ToolResult:
    """Both streams, stderr last, clipped; a note where the command was killed."""
    out, err = decoded(result.stdout), decoded(result.stderr)
    if out and err and not out.endswith("\n"):
        out += "\n"
    notes = []
    if result.timed_out:
        notes.append(f"[killed: no end within {result.seconds:.0f} s; start servers in the background with '&']")
    if result.oom_killed:
        notes.append("[killed: out of memory]")
    notes += [f"[limit reached: {name}]" for name in result.limits_hit if name != "output_bytes"]  # cut output shows it
    text, clipped = clip(out + err, limit)
    parts = [text.rstrip("\n"), *notes] if text else notes
    return ToolResult("\n".join(parts), exit_code=result.exit_code, truncated=clipped or result.truncated,
                      timed_out=result.timed_out)


def absolute(task: Task, path: str) -> str:
    """``path`` as the sandbox names it: relative ones start at the task's workdir."""
    return posixpath.join(task.environment.workdir, path)
