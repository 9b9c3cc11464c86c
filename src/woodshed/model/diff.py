"""Unified diffs of two contents. Pure: bytes in, text out."""

from __future__ import annotations

from difflib import unified_diff


def unified(path: str, before: bytes | None, after: bytes | None, *, max_lines: int = 400) -> str:
    """The unified diff that turns ``before`` into ``after``; None means the file is absent on that side.

    Binary contents (a NUL byte, or not UTF-8) give one line of sizes. Longer diffs are cut with a mark.
    """
    if before == after:
        return ""
    try:
        old, new = _lines(before), _lines(after)
    except UnicodeDecodeError:
        return f"Binary {path}: {_size(before)} -> {_size(after)}\n"
    source = "/dev/null" if before is None else f"a/{path.lstrip('/')}"
    target = "/dev/null" if after is None else f"b/{path.lstrip('/')}"
    lines = [line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
             for line in unified_diff(old, new, source, target)]
    if len(lines) > max_lines:
        lines = [*lines[:max_lines], f"... {len(lines) - max_lines} more lines\n"]
    return "".join(lines)


def _lines(content: bytes | None) -> list[str]:
    if content is None:
        return []
    if b"\0" in content:
        raise UnicodeDecodeError("utf-8", content, 0, 1, "a NUL byte")
    return content.decode("utf-8").splitlines(keepends=True)


def _size(content: bytes | None) -> str:
    return "absent" if content is None else f"{len(content)} bytes"
