"""plan, and delegate: keeping an aim in sight, and handing a part of the work on. Not among the default tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from woodshed.harness.kit import Kit
from woodshed.interfaces import Reach, Sandbox, ToolResult, ToolSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """Notes a plan. The conversation keeps the last one in sight when it leaves turns out."""

    kit: Kit
    reach: ClassVar[Reach] = "files"
    spec = ToolSpec(
        "plan", "Note your plan, and later how far it got: one step a line, done ones marked [x], open ones [ ].",
        {"type": "object", "properties": {"steps": {"type": "string", "description": "the whole plan"}},
         "required": ["steps"]})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Noted."""
        steps = [line for line in arguments["steps"].splitlines() if line.strip()]
        done = sum("[x]" in line.lower() for line in steps)
        return ToolResult(f"Noted: {len(steps)} steps, {done} done.", exit_code=0)


@dataclass(frozen=True, slots=True)
class Delegate:
    """Hands a part of the task to a conversation of its own, on the same sandbox."""

    kit: Kit
    reach: ClassVar[Reach] = "world"
    spec = ToolSpec(
        "delegate", "Give a part of the work to a helper that starts afresh in the same directory and knows only what "
                    "you write here. You get its final answer alone.",
        {"type": "object", "properties": {
            "task": {"type": "string", "description": "all that the helper must know"},
            "turns": {"type": "integer", "description": "how many turns it may take"}},
         "required": ["task"]})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """The helper's final answer; exit code 0 where it said itself that it was done."""
        if self.kit.delegate is None:
            return ToolResult("delegate: a helper has no helpers. Do it yourself.", exit_code=1)
        return await self.kit.delegate(self.kit.call, arguments)
