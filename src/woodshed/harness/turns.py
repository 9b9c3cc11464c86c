"""Turns: a conversation as it is held, so that any part of it can be said in fewer words and still be found again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from woodshed.harness.clip import clip
from woodshed.harness.kit import Deed
from woodshed.harness.tokens import weigh_message
from woodshed.model import Message, ToolCall

How = Callable[[str, int], str]
"""How the rest of the text with this handle is read, from an offset on."""
_WORDS = 300  # of the model's own, where they must be shortened


@dataclass(frozen=True)
class Entry:
    """One message: ``body``, between ``head`` and ``tail``, may be shortened and stands on the shelf as ``handle``.

    ``call`` is the id of the call that a ``tool`` message answers. Where calls stand in the text itself, ``spell``
    writes them below the body, and ``written`` is the text as the model wrote it, until it is shortened. ``reasoning``
    is what it thought before, as far as it is sent back.
    """

    role: str
    body: str
    head: str = ""
    tail: str = ""
    handle: str | None = None
    call: str | None = None
    calls: tuple[ToolCall, ...] = ()
    spell: Callable[[str, tuple[ToolCall, ...]], str] | None = None
    written: str | None = None
    reasoning: str = ""

    @cached_property
    def message(self) -> Message:
        """As it is sent."""
        if self.spell is not None:
            return Message(role=self.role, reasoning=self.reasoning,
                           content=self.spell(self.body, self.calls) if self.written is None else self.written)
        content = "\n".join(part for part in (self.head, self.body, self.tail) if part)
        return Message(role=self.role, content=content, tool_calls=self.calls, call=self.call,
                       reasoning=self.reasoning)

    @cached_property
    def weight(self) -> int:
        """Of the message as it is sent."""
        return weigh_message(self.message.content, self.message.tool_calls, self.reasoning)

    def shortened(self, limit: int, how: How) -> Entry:
        """Itself where it is no output, or not much longer than ``limit`` characters."""
        if self.handle is None or len(self.body) <= limit + 250:
            return self
        return replace(self, body=clip(self.body, limit, how(self.handle, limit * 2 // 3))[0])

    def gone(self, how: How) -> Entry:
        """Only the handle of an output; itself where that is no shorter."""
        if self.handle is None:
            return self
        short = f"[output left out to save room; {how(self.handle, 0)}]"
        return replace(self, body=short) if len(self.body) > len(short) + 100 else self


@dataclass
class Turn:
    """What the model said and what it was answered. ``said`` is None before it spoke."""

    number: int
    said: Entry | None = None
    replies: list[Entry] = field(default_factory=list)
    deeds: list[Deed] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    """What was changed in it, by helpers too."""
    told: list[str] = field(default_factory=list)
    """What was said to it that no call asked for."""
    hushed: bool = False
    """Whether what the model wrote was shortened already."""

    @property
    def handle(self) -> str:
        """Of what the model wrote in it."""
        return f"t{self.number:04d}"

    @property
    def entries(self) -> list[Entry]:
        """All of it, in order."""
        return [*([self.said] if self.said else []), *self.replies]

    @property
    def weight(self) -> int:
        """Of all its messages."""
        return sum(entry.weight for entry in self.entries)

    def words(self) -> str:
        """What the model wrote, with the arguments of its calls."""
        if self.said is None:
            return ""
        if self.said.written is not None:
            return self.said.written
        calls = [f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)}" for call in self.said.calls]
        return "\n".join([*([self.said.body] if self.said.body else []), *calls])

    def whole(self) -> str:
        """What the model thought, where it is still known, and wrote."""
        thought = self.said.reasoning if self.said is not None else ""
        return f"[thought]\n{thought}\n[said]\n{self.words()}" if thought else self.words()

    def forget(self) -> None:
        """Leave out what the model thought."""
        if self.said is not None:
            self.said = replace(self.said, reasoning="")

    def hush(self, how: How) -> bool:
        """Shorten what the model wrote; whether that made it shorter."""
        said = self.said
        if said is None or self.hushed or len(self.words()) <= 3 * _WORDS:
            return False
        calls = tuple(call.model_copy(update={"arguments": {
            key: clip(value, _WORDS)[0] if isinstance(value, str) else value
            for key, value in call.arguments.items()}}) for call in said.calls)
        shorter = replace(said, body=clip(said.body, _WORDS, how(self.handle, 0))[0], calls=calls, written=None)
        if shorter.weight >= said.weight:
            return False
        self.said, self.hushed = shorter, True
        return True
