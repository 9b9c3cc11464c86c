"""Sub-tasks: a fresh conversation on the same sandbox, within what is left of its parent's budget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from woodshed.errors import UsageError
from woodshed.harness.kit import Deed, Kit
from woodshed.harness.limits import Meter
from woodshed.interfaces import Acting, ToolResult
from woodshed.model import AgentLimits, EventKind, StopReason, Usage

_PREFIXES = "abcdefghijklmnopqrsuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""The first letter of a sub-task's ids, which are unique in the attempt. Its own conversation has the ``t``."""
_PART = 2  # a sub-task gets at most this part of what is left: the parent must be able to go on


@dataclass(frozen=True, slots=True)
class Ending:
    """How a conversation ended, what the model said at the end, and all that it did."""

    stop: StopReason
    answer: str = ""
    history: Sequence[Deed] = ()


Converse = Callable[[Acting, "Family"], Awaitable[Ending]]


@dataclass(slots=True)
class Family:
    """Where a conversation stands among those of its attempt. ``born`` counts the sub-tasks of all of them."""

    depth: int = 0
    prefix: str = "t"
    born: list[int] | None = None

    def child(self) -> Family:
        """The next sub-task's. Raises UsageError after the last one."""
        self.born = self.born if self.born is not None else [0]
        if self.born[0] >= len(_PREFIXES):
            raise UsageError(f"an attempt has at most {len(_PREFIXES)} sub-tasks")
        self.born[0] += 1
        return Family(self.depth + 1, _PREFIXES[self.born[0] - 1], self.born)


@dataclass(frozen=True, slots=True)
class Delegation:
    """Carries out the sub-tasks of one conversation. What they use is used of their parent's limits."""

    acting: Acting
    meter: Meter
    kit: Kit
    family: Family
    converse: Converse

    async def __call__(self, call: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The final answer; exit code 0 where the helper said itself that it was done."""
        try:
            family = self.family.child()
        except UsageError as error:
            return ToolResult(f"delegate: {error}. Do it yourself.", exit_code=1)
        limits = self.meter.share(_PART, arguments.get("turns"))
        if limits is None:
            return ToolResult("delegate: too little is left of the limits. Do it yourself.", exit_code=1)
        child = self._acting(call, str(arguments["task"]), limits)
        try:
            ending = await self.converse(child, family)
        finally:
            self.meter.absorb(child.usage)
        self.kit.history.extend(ending.history)  # what a helper changed and checked was changed and checked
        if ending.stop is StopReason.FINISHED:
            return ToolResult(ending.answer, exit_code=0)
        return ToolResult(f"[the helper was stopped: {ending.stop.value}]\n{ending.answer}", exit_code=1)

    def _acting(self, call: str, instruction: str, limits: AgentLimits) -> Acting:
        emit = self.acting.emit

        def tagged(kind: EventKind, data: Mapping[str, Any]) -> None:
            emit(kind, {"parent": call, **data})

        return replace(
            self.acting, emit=tagged, parent=call, usage=Usage(), deadline_s=self.meter.left_s() / _PART,
            task=self.acting.task.model_copy(update={"instruction": instruction}),
            agent=self.acting.agent.model_copy(update={"limits": limits}))
