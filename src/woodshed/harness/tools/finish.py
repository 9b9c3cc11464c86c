"""finish: the agent says that it is done, and what shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from woodshed.harness.finishing import record, standing
from woodshed.harness.kit import Kit
from woodshed.interfaces import Reach, Sandbox, ToolResult, ToolSpec


@dataclass(frozen=True, slots=True)
class Finish:
    """Ends the attempt. A claim only: what counts is verified afterwards.

    Without evidence it is answered once with what is missing; the second one ends the attempt whatever it says.
    """

    kit: Kit
    reach: ClassVar[Reach] = "files"
    spec = ToolSpec(
        "finish", "Say that the task is done. Call it once, at the end.",
        {"type": "object", "properties": {
            "summary": {"type": "string", "description": "what was done"},
            "command": {"type": "string", "description": "the command that you ran to see that it works"},
            "exit_code": {"type": "integer", "description": "how it ended"}}})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Done, or what is missing."""
        summary = str(arguments.get("summary", ""))
        command = str(arguments.get("command") or "").strip() or None
        found = standing(self.kit.history, self.kit.task, summary, command, arguments.get("exit_code"))
        asked = any(call.name == self.spec.name and call.error is None for call, _ in self.kit.history)
        ended = asked or not found.missing
        record(self.kit, found, ended=ended)
        return ToolResult(summary, exit_code=0, done=True) if ended else ToolResult(found.missing, exit_code=1)
