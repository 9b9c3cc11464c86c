"""read_file, write_file, edit_file: whole lines in, exact replacements out."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar

from woodshed.harness.kit import Kit
from woodshed.harness.tools.output import absolute
from woodshed.interfaces import Reach, Sandbox, ToolResult, ToolSpec

_LINES = 400
_COMPARED = 500  # characters of a line that is looked for among others like it; the comparison costs their square
_PATH = {"type": "string", "description": "absolute, or relative to the working directory"}


@dataclass(frozen=True, slots=True)
class ReadFile:
    """Shows a file, or a part of it."""

    kit: Kit
    reach: ClassVar[Reach] = "files"
    parallel_safe: ClassVar[bool] = True
    spec = ToolSpec(
        "read_file", "Read a text file, at most 400 lines at once.",
        {"type": "object", "properties": {
            "path": _PATH, "start": {"type": "integer", "description": "first line, from 1"},
            "lines": {"type": "integer", "description": "how many lines"}},
         "required": ["path"]})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """The lines as they stand; a head line tells which, where it is not the whole file."""
        path = absolute(self.kit.task, arguments["path"])
        try:
            content = await sandbox.read(path)
        except OSError as error:
            return ToolResult(await _why(sandbox, path, error), exit_code=1)
        if b"\0" in content[:8192]:
            return ToolResult(f"{path} is a binary file of {len(content)} bytes.", exit_code=1)
        lines = content.decode("utf-8", "replace").splitlines(keepends=True)
        first = max(1, arguments.get("start", 1))
        chosen = lines[first - 1:first - 1 + min(_LINES, max(1, arguments.get("lines", _LINES)))]
        if not chosen and lines:
            return ToolResult(f"{path} has {len(lines)} lines; there is no line {first}.", exit_code=1)
        part = len(chosen) < len(lines)
        head = f"[lines {first} to {first + len(chosen) - 1} of {len(lines)}]\n" if part else ""
        return ToolResult(head + ("".join(chosen) or "[the file is empty]"), exit_code=0, truncated=part)


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Replaces a whole file."""

    kit: Kit
    reach: ClassVar[Reach] = "files"
    spec = ToolSpec(
        "write_file", "Write a whole file, replacing what was there; folders are made as needed.",
        {"type": "object", "properties": {"path": _PATH, "content": {"type": "string", "description": "all of it"}},
         "required": ["path", "content"]})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """How many bytes now stand there."""
        path, content = absolute(self.kit.task, arguments["path"]), arguments["content"].encode()
        try:
            await sandbox.write(path, content, mode=await _mode(sandbox, path))
        except OSError as error:
            return ToolResult(await _why(sandbox, path, error), exit_code=1)
        return ToolResult(f"Wrote {len(content)} bytes to {path}.", exit_code=0)


@dataclass(frozen=True, slots=True)
class EditFile:
    """Replaces one piece of text that occurs exactly once."""

    kit: Kit
    reach: ClassVar[Reach] = "files"
    spec = ToolSpec(
        "edit_file", "Replace one exact piece of text in a file. It must occur exactly once.",
        {"type": "object", "properties": {
            "path": _PATH, "old": {"type": "string", "description": "the text as it stands, with its indentation"},
            "new": {"type": "string", "description": "the text to stand there instead"}},
         "required": ["path", "old", "new"]})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Where it was replaced; nothing is written when the text is not there exactly once."""
        path, old, new = absolute(self.kit.task, arguments["path"]), arguments["old"], arguments["new"]
        if not old:
            return ToolResult("edit_file: 'old' is empty; use write_file to write a whole file.", exit_code=2)
        try:
            # Bytes that are not UTF-8 survive the round trip.
            text = (await sandbox.read(path)).decode("utf-8", "surrogateescape")
        except OSError as error:
            return ToolResult(await _why(sandbox, path, error), exit_code=1)
        if text.count(old) != 1:
            return ToolResult(_not_once(path, text, old), exit_code=1)
        line = text.count("\n", 0, text.index(old)) + 1
        try:
            changed = text.replace(old, new).encode("utf-8", "surrogateescape")
            await sandbox.write(path, changed, mode=await _mode(sandbox, path))
        except OSError as error:
            return ToolResult(await _why(sandbox, path, error), exit_code=1)
        return ToolResult(f"Replaced it in {path} at line {line}.", exit_code=0)


def _not_once(path: str, text: str, old: str) -> str:
    lines, wanted = text.splitlines(), old.strip().splitlines()
    if (count := text.count(old)) > 1:
        at, places = -1, list[str]()
        while len(places) < 10 and (at := text.find(old, at + 1)) >= 0:
            places.append(str(text.count("\n", 0, at) + 1))
        return f"'old' occurs {count} times in {path} (lines {', '.join(places)}); give more of the text around it."
    if "\r\n" in text and "\n" in old and text.replace("\r\n", "\n").count(old) == 1:
        return f"'old' is not in {path} as written: its lines end with \\r\\n. Edit one line at a time."
    near = get_close_matches(wanted[0], [line for line in lines[:5000] if len(line) <= _COMPARED], n=1) \
        if wanted and len(wanted[0]) <= _COMPARED else []
    hint = f" The nearest line is {lines.index(near[0]) + 1}: {near[0][:200]}" if near else " Read the file first."
    return f"'old' is not in {path}; it must match exactly, with its indentation.{hint}"


async def _mode(sandbox: Sandbox, path: str) -> int:
    """The permissions to keep: a replaced script stays executable."""
    folder, name = posixpath.split(path)
    try:
        entries = await sandbox.list(folder)
    except OSError:
        return 0o644
    return next((entry.mode & 0o777 for entry in entries if entry.name == name and entry.kind == "file"), 0o644)


async def _why(sandbox: Sandbox, path: str, error: OSError) -> str:
    """What stands in the way, and what is there instead."""
    if isinstance(error, FileNotFoundError):
        folder, name = posixpath.split(path)
        try:
            names = [entry.name for entry in (await sandbox.list(folder))[:2000]]
        except OSError:
            return f"There is no {path}: the folder {folder} does not exist."
        near = get_close_matches(name, names, n=1)
        return f"There is no {path}." + (f" Did you mean '{near[0]}'?" if near else "")
    if isinstance(error, IsADirectoryError):
        return f"{path} is a folder."
    return f"{path}: {error.strerror or error}"
