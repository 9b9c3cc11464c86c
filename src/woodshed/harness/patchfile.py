"""What the agent ``patch:FILE`` reads: a unified diff, or a set of whole files. Nothing here touches a sandbox.

A set of files is JSON, ``{"version": 1, "files": {"PATH": "text", "PATH": {"base64": "…"}, "PATH": null}}``: text is
UTF-8, null deletes. Diffs are those of ``diff -u`` and git (renames, modes, deletions). Paths are relative to the
workdir.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woodshed import given
from woodshed.errors import UsageError

if TYPE_CHECKING:
    from unidiff.patch import Hunk as DiffHunk
    from unidiff.patch import PatchedFile

_FILE_BYTES = 100_000_000
_NULL = "/dev/null"
_ESCAPE = re.compile(r'\\([abtnvfr"\\]|[0-7]{3})')
_SIGNS = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_REGULAR = ("100644", "100755", None)


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines ``before``, about line ``start`` (from 0), become ``after``. Lines hold their ends."""

    start: int
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FileChange:
    """What becomes of ``path``: ``content`` where it is whole, else ``hunks`` upon ``source`` (mostly itself).

    ``deleted``: nothing stands there afterwards. ``renamed``: ``source`` goes. ``added``: nothing stands there yet.
    ``mode`` is given where the diff says one.
    """

    path: str
    source: str
    content: bytes | None = None
    hunks: tuple[Hunk, ...] = ()
    deleted: bool = False
    renamed: bool = False
    added: bool = False
    mode: int | None = None


def read_changes(file: Path) -> tuple[FileChange, ...]:
    """The changes that ``file`` holds, in order. Raises UsageError naming the file, and the path that is refused."""
    content = given.content(file, _FILE_BYTES)
    found = _of_set(content, file) if content.lstrip()[:1] == b"{" else _of_diff(content, file)
    for change in found:
        for path in {change.path, change.source}:
            check_path(path, file)
    return found


def check_path(path: str, file: Path) -> None:
    """``path`` stays below the workdir by its words alone. Raises UsageError."""
    try:
        path.encode("utf-8", "surrogateescape")
        sound = "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))
    except UnicodeEncodeError:
        sound = False
    if not sound:
        raise UsageError(f"{path[:200]!r} is no path below the workdir", file=file,
                         remedy="Write paths relative to the workdir, without '.' and '..'.")


def recorded(files: Mapping[str, bytes | None]) -> str:
    """The set of files in the form that :func:`read_changes` reads."""
    told: dict[str, Any] = {}
    for path in sorted(files):
        content = files[path]
        try:
            told[path] = None if content is None else content.decode("utf-8")
        except UnicodeDecodeError:
            told[path] = {"base64": base64.b64encode(content or b"").decode("ascii")}
    return json.dumps({"version": 1, "files": told}, indent=1) + "\n"


def _of_set(content: bytes, file: Path) -> tuple[FileChange, ...]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"is not JSON: {error}", file=file, remedy="Pass a unified diff or a set of files.") from None
    if set(data) != {"version", "files"} or data["version"] != 1 or not isinstance(data["files"], dict):
        raise UsageError("is no set of files", file=file,
                         remedy='Write {"version": 1, "files": {"PATH": "text", …}}, with null for a deleted file.')
    return tuple(_whole(path, value, file) for path, value in data["files"].items())


def _whole(path: str, value: Any, file: Path) -> FileChange:
    if value is None:
        return FileChange(path, path, deleted=True)
    try:
        if isinstance(value, str):
            return FileChange(path, path, content=value.encode("utf-8", "surrogateescape"))
        if not isinstance(value, dict) or set(value) != {"base64"}:
            raise ValueError
        return FileChange(path, path, content=base64.b64decode(value["base64"], validate=True))
    except (ValueError, TypeError, binascii.Error):
        raise UsageError("neither text, null nor base64", file=file, field=f"files.{path[:200]}") from None


def _of_diff(content: bytes, file: Path) -> tuple[FileChange, ...]:
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    try:
        # Latin-1 gives each byte a sign of its own: contents may be in any encoding, and come out as they went in.
        parsed = PatchSet(content.decode("latin-1"))
    except UnidiffParseError as error:
        raise UsageError(f"is no unified diff: {str(error).strip()[:200]}", file=file,
                         remedy="Make one with 'git diff' or 'diff -u'.") from None
    if not parsed:
        raise UsageError("holds no change", file=file, remedy="Make one with 'git diff' or 'diff -u'.")
    return tuple(_changed(part, file) for part in parsed)


def _changed(part: PatchedFile, file: Path) -> FileChange:
    source, target = _paths(part.source_file, part.target_file)
    if part.is_binary_file:
        raise UsageError(f"{target or source}: a binary change cannot be applied", file=file,
                         remedy="Pass the files whole, as a set of files in JSON.")
    if part.source_mode not in _REGULAR or part.target_mode not in _REGULAR:
        raise UsageError(f"{target or source}: a link or a submodule cannot be applied", file=file)
    told = "" if part.patch_info is None else str(part.patch_info)
    moved = "rename from " in told or "copy from " in told
    path = target or source
    return FileChange(
        path=path,
        source=source if moved and source else path,
        hunks=tuple(map(_hunk, part)),
        deleted=not target,
        renamed="rename from " in told and source != target,
        added=not source,
        mode=int(part.target_mode[-3:], 8) if part.target_mode and target else None,
    )


def _paths(source: str, target: str) -> tuple[str, str]:
    """Both paths; empty where there is no such file. ``a/`` and ``b/`` go where both sides have them."""
    one, other = _unquoted(source), _unquoted(target)
    prefixed = one.startswith("a/") or one == _NULL, other.startswith("b/") or other == _NULL
    cut = 2 if all(prefixed) else 0
    return ("" if one == _NULL else one[cut:]), ("" if other == _NULL else other[cut:])


def _unquoted(name: str) -> str:
    """A name as git quotes it, in bytes that are UTF-8 or surrogate escapes."""
    name = name.rstrip("\r")
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = _ESCAPE.sub(lambda match: _SIGNS.get(match[1], match[1]) if len(match[1]) == 1
                           else chr(int(match[1], 8) & 0xFF), name[1:-1])
    return name.encode("latin-1").decode("utf-8", "surrogateescape")


def _hunk(part: DiffHunk) -> Hunk:
    sides: dict[str, list[bytes]] = {"-": [], "+": []}
    last = ""
    for line in part:
        value = str(line.value).encode("latin-1")
        if line.line_type == "\\":  # the line before it has no end
            for side in last:
                sides[side][-1] = sides[side][-1].removesuffix(b"\n")
            continue
        last = {" ": "-+", "-": "-", "+": "+"}.get(line.line_type, "")
        for side in last:
            sides[side].append(value)
    start = part.source_start - (1 if part.source_length else 0)
    return Hunk(max(0, start), tuple(sides["-"]), tuple(sides["+"]))


def applied(content: bytes, hunks: tuple[Hunk, ...]) -> bytes | None:
    """``content`` with the hunks; None where one does not fit.

    A hunk is applied where its lines stand, nearest to where it says, as patch does, and after the one before; never
    fuzzily.
    """
    parts = content.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
    made: list[bytes] = []
    at = shift = 0
    for hunk in hunks:
        place = _place(lines, hunk, at, hunk.start + shift)
        if place is None:
            return None
        made += [*lines[at:place], *hunk.after]
        at, shift = place + len(hunk.before), place - hunk.start
    return b"".join([*made, *lines[at:]])


def _place(lines: list[bytes], hunk: Hunk, low: int, wanted: int) -> int | None:
    high = len(lines) - len(hunk.before)
    if not hunk.before:
        return wanted if low <= wanted <= len(lines) else None
    for distance in range(max(wanted - low, high - wanted, 0) + 1):
        for place in (wanted - distance, wanted + distance):
            if low <= place <= high and tuple(lines[place : place + len(hunk.before)]) == hunk.before:
                return place
    return None
