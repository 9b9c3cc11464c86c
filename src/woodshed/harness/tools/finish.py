"""finish: the agent says that it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from woodshed.interfaces import Reach, Sandbox, ToolResult, ToolSpec
from woodshed.model import Task


@dataclass(frozen=True, slots=True)
class Finish:
    """Ends the attempt. A claim only: what counts is verified afterwards."""

    task: Task
    reach: ClassVar[Reach] = "files"
    spec = ToolSpec(
        "finish", "Say that the task is done. Call it once, at the end.",
        {"type": "object", "properties": {"summary": {"type": "string", "description": "what was done"}}})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Done."""
        return ToolResult(str(arguments.get("summary", "")), exit_code=0, done=True)
