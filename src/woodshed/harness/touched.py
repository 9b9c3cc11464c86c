"""Touched: the files that an agent's calls changed, as far as their words tell. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from woodshed.model import Observation, ToolCall

_INTO = re.compile(r""">>?\s*([\w./+-]+)|\btee (?:-a )?([\w./+-]+)"""
                   r"""|\bsed -i\S*(?: -\S+)* (?:'[^']{0,200}'|"[^"]{0,200}"|\S{1,200}) ([\w./+-]+)""")
_COMMAND_CHARS = 10_000


def touched(history: Iterable[tuple[ToolCall, Observation]]) -> list[str]:
    """Paths in the order in which they were first written."""
    found: dict[str, None] = {}
    for call, seen in history:
        if call.name in ("write_file", "edit_file"):
            if seen.exit_code in (0, None):
                found.setdefault(str(call.arguments.get("path", "")))
        elif isinstance(command := call.arguments.get("command"), str) and call.name != "finish":
            for match in _INTO.finditer(command[:_COMMAND_CHARS]):
                path = next(group for group in match.groups() if group)
                if not path.startswith("/dev/"):
                    found.setdefault(path)
    return [path for path in found if path]
