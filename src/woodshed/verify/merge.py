"""Files of which only some tables steer tests: keep the agent's work, set those tables back. Pure: bytes in and out."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

# [tool.X] tables that test runners and their plugins read: these, and whatever starts with pytest.
TOML_TOOLS = ("coverage", "tox")
JSON_KEYS = ("scripts", "jest", "vitest", "mocha", "ava", "tap", "nyc", "c8")
# No two repeats that fit the same signs stand side by side: the text is hostile. Blanks around the name are cut later.
_HEADER = re.compile(r"^[ \t]*\[{1,2}(?P<name>[^\[\]#]+)\]{1,2}[ \t]*(?:#.*)?$")

Merge = Callable[[bytes | None, bytes], bytes | None]


def merged(name: str, start: bytes | None, new: bytes) -> bytes | None:
    """``new`` with the tables that steer tests as in ``start`` (None: there was no such file).

    Returns ``new`` itself (equal bytes) where it touches none of them, and None where no honest merge can be made:
    the change is then dropped whole.
    """
    merge: Merge = {"pyproject.toml": _toml, "package.json": _json}.get(name, _entry_points)
    try:
        return merge(start, new)
    except (ValueError, RecursionError):
        return None


def _entry_points(start: bytes | None, new: bytes) -> bytes | None:
    """Installed metadata is harmless unless it makes pytest load a plugin by itself."""
    return None if b"pytest11" in new or b"\0" in new else new


def _json(start: bytes | None, new: bytes) -> bytes | None:
    before = json.loads(start) if start is not None else {}
    after = json.loads(new)
    if not isinstance(after, dict) or not isinstance(before, dict):
        return None
    if all(after.get(key) == before.get(key) for key in JSON_KEYS):
        return new
    rest = {key: value for key, value in after.items() if key not in JSON_KEYS}
    kept = {key: before[key] for key in JSON_KEYS if key in before}
    return (json.dumps({**rest, **kept}, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def _toml(start: bytes | None, new: bytes) -> bytes | None:
    old_text, new_text = (start or b"").decode(errors="replace"), new.decode()
    after = tomllib.loads(new_text)
    try:
        before = tomllib.loads(old_text)
    except tomllib.TOMLDecodeError:  # a broken start steers nothing, and may be what the task is about
        old_text, before = "", {}
    if _steering(before) == _steering(after):
        return new
    text = _without(new_text) + "\n" + _only(old_text)
    # The cut is by lines; the proof is that the result parses to exactly the two halves put together.
    result = tomllib.loads(text)
    if _steering(result) != _steering(before) or _rest(result) != _rest(after):
        return None
    return text.encode()


def _steers(tool: str) -> bool:
    return tool in TOML_TOOLS or tool.startswith("pytest")


def _steering(table: dict[str, Any]) -> dict[str, Any]:
    tools = table.get("tool", {})
    return {name: value for name, value in tools.items() if _steers(name)} if isinstance(tools, dict) else {}


def _rest(table: dict[str, Any]) -> dict[str, Any]:
    tools = table.get("tool", {})
    if not isinstance(tools, dict):
        return table
    kept = {name: value for name, value in tools.items() if not _steers(name)}
    return {**{key: value for key, value in table.items() if key != "tool"}, **({"tool": kept} if kept else {})}


def _blocks(text: str) -> list[tuple[bool, str]]:
    """The text cut before each table header: (is a steering table, its lines)."""
    blocks: list[tuple[bool, list[str]]] = [(False, [])]
    for line in text.splitlines(keepends=True):
        if (header := _HEADER.match(line.rstrip("\r\n"))) is not None:
            parts = [part.strip().strip("\"'") for part in header["name"].split(".")]
            blocks.append((parts[0] == "tool" and len(parts) > 1 and _steers(parts[1]), []))
        blocks[-1][1].append(line)
    return [(steering, "".join(lines)) for steering, lines in blocks]


def _without(text: str) -> str:
    return "".join(block for steering, block in _blocks(text) if not steering)


def _only(text: str) -> str:
    return "".join(block for steering, block in _blocks(text) if steering)
