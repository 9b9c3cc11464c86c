"""Acting: what adapters of step-wise trainers share: where attempts are had from, and one at a time of them."""

from __future__ import annotations

from typing import Any, Protocol

from woodshed.errors import Conflict
from woodshed.model.acted import Act, Begin, Begun, Ended, Seen
from woodshed.model.agent import AgentLimits


class Actable(Protocol):
    """Where attempts are acted: :class:`woodshed.trainers.client.Client`, or in this process

    :class:`woodshed.services.acted.Local`.
    """

    def begin(self, begin: Begin) -> Begun:
        """An attempt that waits for calls."""

    def act(self, attempt: str, act: Act) -> Seen:
        """What a tool answers."""

    def finish(self, attempt: str) -> Ended:
        """What was done is verified."""

    def leave(self, attempt: str) -> None:
        """Nobody acts it any more."""


class Player:
    """Acts one attempt after the other. ``ended`` is what the present one came to, or None while it is open."""

    def __init__(self, actable: Actable, *, limits: AgentLimits | None = None, tools: tuple[str, ...] = ("default",),
                 wait_s: float = 600.0) -> None:
        self._actable, self._wait_s = actable, wait_s
        self._limits, self._tools = limits or AgentLimits(), tools
        self.begun: Begun | None = None
        self.ended: Ended | None = None

    def begin(self, task: str, seed: int = 0) -> Begun:
        """The next attempt; the one before is left, if it is open."""
        self.leave()
        self.begun, self.ended = None, None
        self.begun = self._actable.begin(
            Begin(task=task, seed=seed, limits=self._limits, tools=self._tools, wait_s=self._wait_s))
        return self.begun

    def act(self, tool: str, arguments: dict[str, Any]) -> Seen:
        """What the tool answers; that it is over, where it is. Raises Conflict where none has begun."""
        if self.begun is None:
            raise Conflict("no attempt has begun", remedy="Reset first.")
        if self.ended is not None:
            return Seen(content="The attempt is over.", ended=self.ended)
        seen = self._actable.act(self.begun.id, Act(tool=tool, arguments=arguments))
        self.ended = seen.ended
        return seen

    def finish(self) -> Ended | None:
        """What it came to; verified now, where that was not done. None where none has begun."""
        if self.ended is None and self.begun is not None:
            self.ended = self._actable.finish(self.begun.id)
        return self.ended

    def leave(self) -> None:
        """Nobody acts the present one any more. Idempotent."""
        if self.begun is not None and self.ended is None:
            self._actable.leave(self.begun.id)
        self.begun = None
