"""Dialects for endpoints of raw completions: the whole conversation is one text in a family's chat format."""

from __future__ import annotations

from collections.abc import Sequence

from woodshed.harness.dialects.chats import CHATS
from woodshed.harness.dialects.families import Family
from woodshed.harness.dialects.family import read_family
from woodshed.harness.dialects.hearing import hear
from woodshed.harness.dialects.reading import Dialect, Reading
from woodshed.harness.dialects.text import Text
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ModelResponse, ToolSpec
from woodshed.model.exchange import ChatFormat


class Raw:
    """A family's calls in its own chat format, which also tells of the tools, each where its models expect it."""

    prose_finishes = True
    fallback: Dialect | None = None

    def __init__(self, family: Family) -> None:
        self._family, self.name = family, family.name
        self.chat: ChatFormat | None = CHATS[family.name]

    def offers(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """All of them, for the format to write."""
        return tools

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Little: the format explains the form, where its models need that."""
        return "Use the tools to do what the user asks. When it is done, call finish."

    def read(self, response: ModelResponse, tools: Sequence[ToolSpec] = ()) -> Reading:
        """The answer's calls, in order."""
        return read_family(response, hear(response.content, self._family, Types(tools)), self._family, tools)


class RawText(Text):
    """Commands in fenced blocks, in the chat format of a family: for models that were not taught its calls."""

    def __init__(self, family: Family) -> None:
        self.name, self.chat = f"text:{family.name}", CHATS[family.name]
