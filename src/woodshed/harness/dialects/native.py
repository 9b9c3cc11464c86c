"""tools: the server's own tool calls; auto: those, or else what the text says."""

from __future__ import annotations

from collections.abc import Sequence

from woodshed.harness.dialects.reading import Dialect, Reading
from woodshed.harness.dialects.text import Text, read_text
from woodshed.interfaces import ModelResponse, ToolSpec
from woodshed.model import ToolCall

_COMPLAINT = "Your answer calls no tool. Call a tool to go on, or call finish when the task is done."


class Tools:
    """Native tool calls only."""

    name = "tools"
    prose_finishes = False
    fallback: Dialect | None = None

    def offers(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """All of them."""
        return tools

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Little: the server's template explains the form."""
        return "Use the tools to do what the user asks. When the task is done, call finish."

    def read(self, response: ModelResponse) -> Reading:
        """What the server parsed."""
        return Reading(calls=_told(response), native=True, complaint=_COMPLAINT)


class Auto:
    """Native tool calls where the answer has them, else one fenced block; text alone if the server takes no tools."""

    name = "auto"
    prose_finishes = True

    def __init__(self) -> None:
        self.fallback: Dialect | None = Text()

    def offers(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """All of them."""
        return tools

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """As for native calls, and the other way."""
        return ("Use the tools to do what the user asks. When the task is done, call finish. If you cannot call tools, "
                "reply with exactly one command in a ```bash code block instead.")

    def read(self, response: ModelResponse) -> Reading:
        """What the server parsed, or the first block of the text."""
        if response.tool_calls:
            return Reading(calls=_told(response), native=True)
        reading = read_text(response)
        return reading if reading.calls or reading.done else Reading(complaint=f"{reading.complaint} Or call a tool.")


def _told(response: ModelResponse) -> tuple[ToolCall, ...]:
    """The calls; a broken one says so where the reason is that the answer was cut off."""
    if response.finish_reason != "length":
        return response.tool_calls
    return tuple(call.model_copy(update={"error": f"{call.error}. Your answer was cut off: write less at once"})
                 if call.error else call for call in response.tool_calls)
