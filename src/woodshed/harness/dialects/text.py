"""text: one fenced block an answer, for models and servers without tool calls."""

from __future__ import annotations

import re
from collections.abc import Sequence

from woodshed.harness.dialects.fence import calls_in, spoken
from woodshed.harness.dialects.reading import Dialect, Reading
from woodshed.interfaces import ModelResponse, ToolSpec
from woodshed.model import ToolCall
from woodshed.model.exchange import ChatFormat

_DONE = re.compile(r"DONE\W*\Z")
_FORM = "Reply with exactly one command in a ```bash code block."  # no word of DONE: small models then say it at once


class Text:
    """Commands in ```bash blocks; a ```json block with name and arguments calls any tool. The first block counts."""

    name = "text"
    chat: ChatFormat | None = None
    prose_finishes = True
    fallback: Dialect | None = None

    def offers(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """None: everything stands in the manual."""
        return ()

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """The form of an answer, and nothing else.

        Measured on Qwen2.5-Coder-0.5B: a list of the other tools, or the word DONE before anything was done, makes it
        answer with invented calls or with DONE. The shell does all that the other tools do; their calls are understood.
        """
        return "Reply with exactly one bash command in a ```bash code block and nothing else."

    def read(self, response: ModelResponse, tools: Sequence[ToolSpec] = ()) -> Reading:
        """The first block that is a call, or why there is none."""
        return read_text(response)


def read_text(response: ModelResponse) -> Reading:
    """The one call in the answer's text. What comes after it was written without knowing its result."""
    text = spoken(response.content)
    found = calls_in(text)
    if not found:
        cut = "Your answer was cut off: it is too long. " if response.finish_reason == "length" else ""
        return Reading(done=done(text), complaint=f"{cut}Your answer holds no command. {_FORM}")
    first = found[0]
    if not isinstance(first, ToolCall):
        return Reading(complaint=f"Nothing was run: {first}. {_FORM}")
    if response.finish_reason == "length" and len(found) == 1 and not text.endswith(("```", ">")):
        return Reading(complaint=f"Nothing was run: your answer was cut off in the middle of the block. {_FORM}")
    note = f"Only the first of your {len(found)} blocks was run." if len(found) > 1 else ""
    return Reading(calls=(first,), note=note)


def done(text: str) -> bool:
    """True where DONE is the last word, on a line of its own. Linear: answers may hold thousands of line ends."""
    last = _DONE.search(text)
    if last is None:
        return False
    start = last.start()
    while start and not (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    return start == 0 or "\n" in text[start:last.start()]
