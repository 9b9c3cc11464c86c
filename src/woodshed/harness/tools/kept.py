"""read_output: what was left out of the conversation, whole, by its handle or by a text in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from woodshed.harness.kit import Kit
from woodshed.harness.shelf import LOG
from woodshed.interfaces import Reach, Sandbox, ToolResult, ToolSpec

_MATCHES = 50
_LINE_CHARS = 300
_PAGE = 4_000


@dataclass(frozen=True, slots=True)
class ReadOutput:
    """Reads from the shelf. Plain text is looked for, no pattern."""

    kit: Kit
    reach: ClassVar[Reach] = "files"
    parallel_safe: ClassVar[bool] = True
    spec = ToolSpec(
        "read_output", "Read a part of an earlier output that was left out, or find a text in all of them.",
        {"type": "object", "properties": {
            "handle": {"type": "string", "description": "as the gap names it; 'log' lists all earlier calls"},
            "offset": {"type": "integer", "description": "first character, from 0"},
            "limit": {"type": "integer", "description": "how many characters"},
            "find": {"type": "string", "description": "only lines with this text; without handle: of all outputs"}}})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """The part, with its place in the whole; or the lines found, with their handles."""
        handle, needle = str(arguments.get("handle") or "").strip("\"' "), str(arguments.get("find") or "")
        if needle and not handle:
            return await asyncio.to_thread(self._found, needle)
        text = self.kit.shelf.text(handle or LOG)
        if text is None:
            return ToolResult(f"read_output: there is no output '{handle[:60]}'. 'log' lists all earlier calls.", 1)
        if needle:
            lines = [line for line in text.splitlines() if needle.casefold() in line.casefold()]
            return self._lines(lines[:_MATCHES + 1], needle)
        offset = max(0, arguments.get("offset", 0))
        if offset and offset >= len(text):
            return ToolResult(f"read_output: {handle} has {len(text):,} characters; there is none at {offset:,}.", 1)
        part = text[offset:offset + max(1, arguments.get("limit", _PAGE))]
        part = part[:max(1, self.kit.fitting(part) - 100)] if len(part) > self.kit.fitting(part) - 100 else part
        head = f"[characters {offset:,} to {offset + len(part):,} of {len(text):,}]\n"
        return ToolResult(head + part, exit_code=0)

    def _found(self, needle: str) -> ToolResult:
        found = islice(self.kit.shelf.lines(needle), _MATCHES + 1)
        return self._lines([f"{handle}: {line}" for handle, line in found], needle)

    def _lines(self, lines: list[str], needle: str) -> ToolResult:
        if not lines:
            return ToolResult("read_output: no line holds this text.", exit_code=1)
        shown = [_around(line, needle) for line in lines[:_MATCHES]]
        more = ["[... more lines; find a longer text]"] if len(lines) > _MATCHES else []
        return ToolResult("\n".join([*shown, *more]), exit_code=0, truncated=bool(more))


def _around(line: str, needle: str) -> str:
    """A long line, cut around what was found in it."""
    if len(line) <= _LINE_CHARS:
        return line
    at = max(0, line.casefold().find(needle.casefold()) - _LINE_CHARS // 3)
    head = line[:12] + "... " if at else ""
    return f"{head}{line[at:at + _LINE_CHARS]}..."
