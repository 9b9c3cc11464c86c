"""Pace: tells a model that is slow from one that is dead, when the wall cuts a call.

A slow model spends its agent's declared time: that is a wall limit, and the work is judged. A dead endpoint is a fault
of the world, and must not become a failed agent. An agent cannot turn the one into the other by writing much: the
longest answer it may give is allowed for.
"""

from __future__ import annotations

from woodshed.errors import ModelFault, ModelUnreachable
from woodshed.interfaces import ModelResponse

LEAST_S = 30.0  # below this nobody is called dead who has answered before
SLACK = 3.0  # a loaded server may be this much slower than the slowest answer so far


class Pace:
    """Remembers how fast a model answered in this attempt."""

    def __init__(self) -> None:
        self._slowest: float | None = None  # tokens a second, prompt processing included
        self._longest_s = 0.0
        self._answers = 0

    def answered(self, response: ModelResponse, seconds: float) -> None:
        """One answer came, after ``seconds``."""
        self._answers += 1
        self._longest_s = max(self._longest_s, seconds)
        if response.completion_tokens and seconds > 0:
            rate = response.completion_tokens / seconds
            self._slowest = rate if self._slowest is None else min(self._slowest, rate)

    def verdict(self, waited_s: float, max_tokens: int, late: TimeoutError) -> ModelFault | None:
        """The fault that a call cut after ``waited_s`` shows, or None where the model may just be slow.

        ``late`` is what the cut raised: the gateway leaves the fault of the last failed try as the cause of its cause.
        """
        failed = late.__cause__.__cause__ if late.__cause__ is not None else None
        if isinstance(failed, ModelFault):
            return failed
        if not self._answers:
            return ModelUnreachable(f"the model gave no answer at all within the attempt's time ({waited_s:.0f} s)")
        if self._slowest is None:
            return None
        longest_s = SLACK * max(max_tokens / self._slowest, self._longest_s)
        if waited_s <= max(LEAST_S, longest_s):
            return None
        return ModelUnreachable(f"the model gave no answer in {waited_s:.0f} s; its longest takes {longest_s:.0f} s")
