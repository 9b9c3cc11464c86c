"""Meter: keeps the usage of an attempt current and says which declared limit was reached."""

from __future__ import annotations

import time
from collections.abc import Callable

from woodshed.harness.tokens import weigh
from woodshed.interfaces import Acting, ModelResponse
from woodshed.model import AgentLimits, StopReason, Usage


class Meter:
    """Counts turns, tool calls, tokens and wall seconds of one attempt against ``agent.limits``."""

    def __init__(self, acting: Acting, clock: Callable[[], float] = time.monotonic) -> None:
        self._acting, self._limits, self._clock = acting, acting.agent.limits, clock
        self._began = clock()
        self._spent = 0

    def reached(self) -> StopReason | None:
        """The limit that forbids another turn, or None."""
        if self.left_s() <= 0:
            return StopReason.WALL
        if self._acting.usage.turns >= self._limits.turns:
            return StopReason.TURNS
        if self._limits.tokens is not None and self._spent >= self._limits.tokens:
            return StopReason.TOKENS
        return None

    def no_more_calls(self) -> StopReason | None:
        """The limit that forbids another tool call, or None."""
        if self.left_s() <= 0:
            return StopReason.WALL
        return StopReason.TOOL_CALLS if self._acting.usage.tool_calls >= self._limits.tool_calls else None

    def calls_left(self) -> int:
        """How many tool calls may be made now."""
        return 0 if self.left_s() <= 0 else max(0, self._limits.tool_calls - self._acting.usage.tool_calls)

    def share(self, part: int, turns: int | None) -> AgentLimits | None:
        """The limits of a sub-task: a ``part``-th of what is left, at most ``turns``; None where that is nothing."""
        used = self._acting.usage
        most = (self._limits.turns - used.turns) // part
        calls = (self._limits.tool_calls - used.tool_calls) // part
        tokens = None if self._limits.tokens is None else (self._limits.tokens - self._spent) // part
        if most < 1 or calls < 1 or (tokens is not None and tokens < 1):
            return None
        return self._limits.model_copy(update={
            "turns": min(most, max(1, turns or most)), "tool_calls": calls, "tokens": tokens})

    def absorb(self, usage: Usage) -> None:
        """A sub-task used this: it is part of this attempt's usage."""
        self._acting.usage = self._acting.usage.plus(usage)
        self._spent += usage.prompt_tokens + usage.completion_tokens

    def turn(self, response: ModelResponse, sent: int) -> None:
        """One model call more, of about ``sent`` tokens: charged where the server reports none, for budgets bind."""
        usage = self._acting.usage
        self._acting.usage = usage.model_copy(update={
            "turns": usage.turns + 1,
            "prompt_tokens": usage.prompt_tokens + response.prompt_tokens,
            "completion_tokens": usage.completion_tokens + response.completion_tokens,
        })
        guess = sent + weigh(response.content) + weigh(response.reasoning)
        self._spent += (response.prompt_tokens + response.completion_tokens) or guess

    def tool_call(self) -> None:
        """One tool call more."""
        usage = self._acting.usage
        self._acting.usage = usage.model_copy(update={"tool_calls": usage.tool_calls + 1})

    def tool_timeout_s(self) -> float:
        """Seconds that the next tool may take: its own limit, or what is left of the wall."""
        return max(0.001, min(self._limits.tool_timeout_s, self.left_s()))

    def tokens_left(self) -> int | None:
        """Completion tokens that the budget still allows; None without one."""
        return None if self._limits.tokens is None else max(1, self._limits.tokens - self._spent)

    def call_s(self) -> float:
        """Seconds that a model call may take: a little less than the wall, so that its end is ours to explain."""
        return max(0.001, self.left_s() - min(0.5, 0.02 * self._acting.deadline_s))

    def left_s(self) -> float:
        """Seconds until the wall limit."""
        return self._began + self._acting.deadline_s - self._clock()  # which may be moved while it acts
