"""Finding the one call in an answer's text: a fenced block, or a marked or bare JSON object. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from woodshed.model import ToolCall, read_object

_SHELL = frozenset({"bash", "sh", "shell", "zsh", "console", "shell-session", "terminal", ""})
_JSON = frozenset({"json", "tool_call", "tool", "tool_code"})
_OPEN = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([\w+.-]*)[^`\n]*$")
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_MARKED = re.compile(r"<(tool_call|function_call)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_BARE = re.compile(
    r"(?:\$ )?(?:awk|cat|cd|chmod|cp|cut|diff|echo|env|find|git|grep|head|ls|make|mkdir|mv|node|npm|pip|printf|pwd"
    r"|pytest|python3?|rm|rmdir|sed|sort|tail|tar|tee|test|touch|tr|uniq|wc|xargs) [^\n]{1,500}")
"""One line that begins like a command: small models forget the fence. Prose does not begin with these words."""
_PROMPT = re.compile(r"^\$ ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fence:
    """One fenced block. ``closed`` is False where the text ended inside it."""

    language: str
    content: str
    closed: bool


def spoken(text: str) -> str:
    """The answer without its private reasoning."""
    return _THOUGHT.sub("", text).strip()


def fences(text: str) -> Iterator[Fence]:
    """The fenced blocks of ``text`` (CommonMark 0.31, 4.5: closed by a fence of at least the same length)."""
    opened, language, lines = "", "", list[str]()
    for line in text.splitlines():
        if not opened:
            if found := _OPEN.match(line):
                opened, language, lines = found[1], found[2].lower(), []
        elif re.fullmatch(rf" {{0,3}}{re.escape(opened[0])}{{{len(opened)},}}[ \t]*", line):
            yield Fence(language, "\n".join(lines), True)
            opened = ""
        else:
            lines.append(line)
    if opened:
        yield Fence(language, "\n".join(lines), False)


def calls_in(text: str) -> list[ToolCall | str]:
    """Every call that ``text`` holds, in order; a string instead is what is wrong with a block that tries to be one."""
    found = [call for fence in fences(text) if (call := _in_fence(fence)) is not None]
    if not found:
        found = [_in_json(match[2].strip()) for match in _MARKED.finditer(text)]
    if not found and text.startswith("{") and (bare := read_object(text)[0]) is not None and "name" in bare:
        found = [_in_json(text)]
    line = text[1:-1] if len(text) > 2 and text[0] == text[-1] == "`" else text
    if not found and _BARE.fullmatch(line) and not line.endswith((".", ":", "!", "?")):
        found = [ToolCall(id="", name="bash", arguments={"command": line.removeprefix("$ ")})]
    return found


def _in_fence(fence: Fence) -> ToolCall | str | None:
    """The call of one block; None for a block in another language, which is shown and not meant to run."""
    content = fence.content.strip()
    if fence.language == "finish":
        return ToolCall(id="", name="finish", arguments={"summary": content} if content else {})
    if fence.language in _JSON or (not fence.language and content.startswith('{"name"')):
        return _in_json(content)
    if fence.language in _SHELL:
        command = _PROMPT.sub("", fence.content).strip()
        return ToolCall(id="", name="bash", arguments={"command": command}) if command else "the block is empty"
    return None


def _in_json(text: str) -> ToolCall | str:
    value, error = read_object(text)
    if value is None:
        return f"the tool call is {error}"
    return _as_call(value) or 'the JSON block is no tool call: it needs "name" and "arguments"'


def _as_call(value: Mapping[str, Any]) -> ToolCall | None:
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = read_object(arguments)[0]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return ToolCall(id="", name=name, arguments=arguments)
