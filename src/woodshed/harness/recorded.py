"""Recorded: a tool call in the log, its intent before it and its result after, the same for every harness."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from woodshed.harness.clip import clip, decoded
from woodshed.interfaces import Acting, Emit, Reach, ToolResult
from woodshed.model import EventKind, StopReason

ONLY_CALL = "t0001c001"
"""Id of the call of a harness that makes a single one."""
_SHOWN = 16_000


Work = Callable[[], Awaitable[ToolResult]]
Kept = Callable[[], Awaitable[None]]


async def recorded(acting: Acting, intent: Mapping[str, Any], work: Work, *, reach: Reach = "world") -> ToolResult:
    """What ``work`` gives, with the events of it. ``intent`` holds ``call`` (the id), ``name`` and ``arguments``.

    Of a fine attempt it may be what an earlier execution recorded; ``work`` is then done again, or not at all.
    """
    if acting.around_tool is not None:
        return await acting.around_tool(intent, work, reach)
    return await carried_out(acting.emit, intent, work)


async def carried_out(emit: Emit, intent: Mapping[str, Any], work: Work, kept: Kept | None = None) -> ToolResult:
    """The call, made now: its intent, what ``work`` gives, its result. ``kept`` makes each of both durable."""
    emit(EventKind.TOOL_CALL, intent)
    if kept is not None:
        await kept()
    started = time.perf_counter()
    result = await work()
    emit(EventKind.TOOL_RESULT, {
        "call": intent["call"], "content": result.content, "exit_code": result.exit_code,
        "truncated": result.truncated, "timed_out": result.timed_out,
        "seconds": round(time.perf_counter() - started, 6), **({"done": True} if result.done else {}),
        **({"characters": result.characters, "blob": result.blob} if result.characters is not None else {}),
    })
    if kept is not None:
        await kept()
    return result


async def played(
    acting: Acting, command: str | Sequence[str], *, shown: str, env: Mapping[str, str] | None = None, timeout_s: float
) -> ToolResult:
    """Run ``command`` in the workdir as the only call of the attempt; the log shows it as ``shown``."""

    async def run() -> ToolResult:
        done = await acting.sandbox.exec(
            command, cwd=acting.task.environment.workdir or None, env=env, timeout_s=timeout_s)
        output, clipped = clip(decoded(done.stdout + done.stderr), _SHOWN)
        return ToolResult(output, done.exit_code, clipped or done.truncated, done.timed_out)

    intent = {"call": ONLY_CALL, "name": "bash", "arguments": {"command": shown}}
    result = await recorded(acting, intent, run, reach="sandbox")
    acting.usage = acting.usage.model_copy(update={"turns": 1, "tool_calls": 1})
    return result


def stop_of(result: ToolResult) -> StopReason:
    """Why an attempt ended whose only call had this result."""
    if result.timed_out:
        return StopReason.WALL
    return StopReason.FINISHED if result.exit_code == 0 else StopReason.SOLUTION_FAILED
