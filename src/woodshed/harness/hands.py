"""Hands: carry out tool calls in the sandbox, each with its intent written before and its result after."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any

from woodshed.errors import Cause, EnvironmentFault, boundary
from woodshed.harness.clip import clip
from woodshed.harness.kit import Kit
from woodshed.harness.limits import Meter
from woodshed.harness.recorded import carried_out, recorded
from woodshed.harness.schema import complaint, unknown_tool
from woodshed.harness.tools import Maker
from woodshed.interfaces import Acting, Reach, Tool, ToolResult, ToolSpec
from woodshed.model import ToolCall

_LEAST_S = 0.1
_AT_ONCE = 8
_OF_ITS_OWN = "delegate"
"""The one tool whose calls are calls of their own: those are recorded, and taken from the record, one by one."""


class Hands:
    """The tools of one attempt. A malformed call is answered, never raised: no agent can break its own attempt."""

    def __init__(self, acting: Acting, makers: Sequence[Maker], meter: Meter, kit: Kit) -> None:
        self._acting, self._meter, self._kit = acting, meter, kit
        made = [maker(kit) for maker in makers]
        self.tools: Mapping[str, Tool] = {tool.spec.name: tool for tool in made}

    @property
    def specs(self) -> list[ToolSpec]:
        """The tools as the model sees them."""
        return [tool.spec for tool in self.tools.values()]

    def batches(self, calls: Sequence[ToolCall]) -> list[list[ToolCall]]:
        """``calls`` in order; those that stand together may be carried out at once, for they only read."""
        found: list[list[ToolCall]] = []
        for safe, group in groupby(calls, self._parallel_safe):
            alike = list(group)
            size = _AT_ONCE if safe else 1
            found += [alike[start:start + size] for start in range(0, len(alike), size)]
        return found

    async def all(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """The results of one batch, in order, with all of them at an end. Raises as :meth:`do`."""
        if len(calls) == 1:
            return [await self.do(calls[0])]
        found = await asyncio.gather(*(self.do(call) for call in calls), return_exceptions=True)
        results = [result for result in found if isinstance(result, ToolResult)]
        for fault in found:
            if isinstance(fault, BaseException):
                raise fault
        return results

    async def do(self, call: ToolCall) -> ToolResult:
        """Carry out one call. Raises SandboxDied and other faults of the sandbox; HarnessFault when a tool breaks."""
        error = self._wrong(call)
        intent: dict[str, Any] = {"call": call.id, "name": call.name, "arguments": call.arguments}
        intent |= {"parent": self._acting.parent} if self._acting.parent else {}

        async def work() -> ToolResult:
            return ToolResult(error, exit_code=2) if error else await self._kept(call, await self._run(call))

        if error:
            intent |= {"raw": call.raw, "error": error}
            self._kit.malformed.add(call.id)
        self._meter.tool_call()
        if call.name == _OF_ITS_OWN and not error:
            result = await carried_out(self._acting.emit, intent, work)
        else:
            result = await recorded(self._acting, intent, work, reach="files" if error else self._reach(call))
        if result.blob is not None:
            self._kit.shelf.know(call.id, result.blob)
        elif call.id not in self._kit.shelf:
            self._kit.shelf.keep(call.id, result.content)
        return result

    async def close(self) -> None:
        """End the shell and the jobs of this conversation. A sandbox that is gone has none."""
        with suppress(EnvironmentFault, OSError):
            await self._kit.close()

    def _parallel_safe(self, call: ToolCall) -> bool:
        return self._wrong(call) is None and getattr(self.tools[call.name], "parallel_safe", False)

    def _reach(self, call: ToolCall) -> Reach:
        return getattr(self.tools[call.name], "reach", "world")

    def _wrong(self, call: ToolCall) -> str | None:
        if call.name not in self.tools:
            return unknown_tool(call.name, self.tools)
        spec = self.tools[call.name].spec
        return f"{call.name}: arguments are {call.error}" if call.error else complaint(spec, call.arguments)

    async def _run(self, call: ToolCall) -> ToolResult:
        self._kit.call = call.id
        with boundary(Cause.HARNESS, f"tool {call.name}"):
            try:
                return await self.tools[call.name].run(
                    self._acting.sandbox, call.arguments, timeout_s=self._timeout_s(call))
            except (OSError, ValueError) as error:
                # Of the world inside, such as a path that is too long. A sandbox that is gone raises SandboxDied.
                return ToolResult(f"{call.name}: {error}", exit_code=1)

    def _timeout_s(self, call: ToolCall) -> float:
        """What the limits allow, or less where the model asks for less."""
        asked = call.arguments.get("timeout_s")
        most = self._meter.tool_timeout_s()
        return min(most, max(_LEAST_S, asked)) if isinstance(asked, int | float) else most

    async def _kept(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """The result as the model is shown it; where that is only a part, the whole is on the shelf."""
        limit = self._kit.fitting(result.content)
        if len(result.content) <= limit:
            return result
        whole = result.content
        blob = await asyncio.to_thread(self._kit.shelf.keep, call.id, whole)
        shown, _ = clip(whole, limit, self._kit.how(call.id, limit * 2 // 3))
        return replace(result, content=shown, truncated=True, blob=blob, characters=len(whole))
