"""Hands: carry out tool calls in the sandbox, each with its intent written before and its result after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from woodshed.errors import Cause, boundary
from woodshed.harness.limits import Meter
from woodshed.harness.recorded import recorded
from woodshed.harness.schema import complaint, unknown_tool
from woodshed.harness.tools import Maker
from woodshed.interfaces import Acting, Reach, Tool, ToolResult
from woodshed.model import ToolCall


class Hands:
    """The tools of one attempt. A malformed call is answered, never raised: no agent can break its own attempt."""

    def __init__(self, acting: Acting, makers: Sequence[Maker], meter: Meter) -> None:
        self._acting, self._meter = acting, meter
        made = [maker(acting.task) for maker in makers]
        self.tools: Mapping[str, Tool] = {tool.spec.name: tool for tool in made}

    async def do(self, call: ToolCall) -> ToolResult:
        """Carry out one call. Raises SandboxDied and other faults of the sandbox; HarnessFault when a tool breaks."""
        error = self._wrong(call)
        intent: dict[str, Any] = {"call": call.id, "name": call.name, "arguments": call.arguments}

        async def work() -> ToolResult:
            return ToolResult(error, exit_code=2) if error else await self._run(call)

        intent |= {"raw": call.raw, "error": error} if error else {}
        self._meter.tool_call()
        return await recorded(self._acting, intent, work, reach="files" if error else self._reach(call))

    def _reach(self, call: ToolCall) -> Reach:
        return getattr(self.tools[call.name], "reach", "world")

    def _wrong(self, call: ToolCall) -> str | None:
        if call.name not in self.tools:
            return unknown_tool(call.name, self.tools)
        spec = self.tools[call.name].spec
        return f"{call.name}: arguments are {call.error}" if call.error else complaint(spec, call.arguments)

    async def _run(self, call: ToolCall) -> ToolResult:
        with boundary(Cause.HARNESS, f"tool {call.name}"):
            try:
                return await self.tools[call.name].run(
                    self._acting.sandbox, call.arguments, timeout_s=self._meter.tool_timeout_s())
            except (OSError, ValueError) as error:
                # Of the world inside, such as a path that is too long. A sandbox that is gone raises SandboxDied.
                return ToolResult(f"{call.name}: {error}", exit_code=1)
