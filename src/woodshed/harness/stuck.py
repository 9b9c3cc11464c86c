"""Stuck: notices a call that keeps giving the same result."""

from __future__ import annotations

import json

from woodshed.interfaces import ToolResult
from woodshed.model import ToolCall

TELL_AT = 3
STOP_AT = 5


class Repeats:
    """Counts how often in a row the same call had the same result."""

    def __init__(self) -> None:
        self._last, self.count = "", 0

    def see(self, call: ToolCall, result: ToolResult) -> str:
        """A hint for the model, from the third time on; else nothing."""
        seen = json.dumps([call.name, call.arguments, call.raw, result.exit_code, result.content], sort_keys=True)
        self.count = self.count + 1 if seen == self._last else 1
        self._last = seen
        if self.count < TELL_AT:
            return ""
        return (f"You made this call {self.count} times with the same result. "
                "Do something else, or say that the task is done.")

    @property
    def hopeless(self) -> bool:
        """True when telling did not help."""
        return self.count >= STOP_AT
