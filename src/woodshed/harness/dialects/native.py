"""tools: the server's own tool calls; auto: those, or else what the text says."""

from __future__ import annotations

from collections.abc import Sequence

from woodshed.harness.dialects.choosing import AnyFamily
from woodshed.harness.dialects.families import Family
from woodshed.harness.dialects.family import InFamily, read_family
from woodshed.harness.dialects.fence import fences
from woodshed.harness.dialects.hearing import Heard
from woodshed.harness.dialects.reading import Dialect, Reading
from woodshed.harness.dialects.text import Text, read_text
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ModelResponse, ToolSpec
from woodshed.model import ToolCall
from woodshed.model.exchange import UNPARSED, ChatFormat

_COMPLAINT = "Your answer calls no tool. Call a tool to go on, or call finish when the task is done."
_UNREAD = "Your answer could not be read. Call one tool, with arguments in valid JSON."


class Tools:
    """Native tool calls only."""

    name = "tools"
    chat: ChatFormat | None = None
    prose_finishes = False
    fallback: Dialect | None = None

    def offers(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """All of them."""
        return tools

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Little: the server's template explains the form."""
        return "Use the tools to do what the user asks. When the task is done, call finish."

    def read(self, response: ModelResponse, tools: Sequence[ToolSpec] = ()) -> Reading:
        """What the server parsed."""
        return Reading(calls=_told(response), native=True, complaint=_COMPLAINT)


class Auto:
    """Native tool calls where the answer has them, else what stands in a family's marks, else one fenced block.

    If the server takes no tools: the format of the model's ``family``, or text where its name tells of none.
    """

    name = "auto"
    chat: ChatFormat | None = None
    prose_finishes = True

    def __init__(self, family: Family | None = None) -> None:
        self.fallback: Dialect | None = InFamily(family) if family else Text()
        self._any = AnyFamily(family)

    def offers(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """All of them."""
        return tools

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """As for native calls, and the other way."""
        return ("Use the tools to do what the user asks. When the task is done, call finish. If you cannot call tools, "
                "reply with exactly one command in a ```bash code block instead.")

    def read(self, response: ModelResponse, tools: Sequence[ToolSpec] = ()) -> Reading:
        """What the server parsed, or what it left in the text: calls in a family's marks, or the first block."""
        if response.tool_calls:
            return Reading(calls=_told(response), native=True)
        family, heard = self._any.hear(response.content, Types(tools))
        if _meant(heard, tools) and not any(fences(heard.said)):
            return read_family(response, heard, family, tools)
        reading = read_text(response)
        if response.finish_reason == UNPARSED and not reading.calls:
            return Reading(attempted=True, complaint=_UNREAD)
        return reading if reading.calls or reading.done else Reading(complaint=f"{reading.complaint} Or call a tool.")


def _meant(heard: Heard, tools: Sequence[ToolSpec]) -> bool:
    """Whether what was heard is a call, and not a mark that is spoken of: it can be read, or names one of ``tools``."""
    names = {tool.name for tool in tools}
    return any(isinstance(item, ToolCall) and (not item.error or item.name in names) for item in heard.found)


def _told(response: ModelResponse) -> tuple[ToolCall, ...]:
    """The calls; a broken one says so where the reason is that the answer was cut off."""
    if response.finish_reason != "length":
        return response.tool_calls
    return tuple(call.model_copy(update={"error": f"{call.error}. Your answer was cut off: write less at once"})
                 if call.error else call for call in response.tool_calls)
