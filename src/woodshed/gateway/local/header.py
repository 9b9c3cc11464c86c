"""What a GGUF file says of itself, read from its first few megabytes.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The reader of the
``gguf`` package builds array views for each of some 300,000 vocabulary entries (8 s for a 0.5B model); we need four
strings before each start, so we walk the table and skip the rest.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from woodshed.errors import UsageError

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_WANTED = ("general.architecture", "general.name", "general.basename", "tokenizer.chat_template")
_MAX_KEYS, _MAX_TEXT, _MAX_DEPTH = 10_000, 1 << 20, 4


@dataclass(frozen=True, slots=True)
class Header:
    """Name, architecture and chat template; empty strings where the file says nothing."""

    name: str
    architecture: str
    template: str


class _Walk:
    """A position in the key-value table. Everything it reads is checked against the end of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def number(self, form: str) -> int:
        value: int = struct.unpack_from(form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def skip(self, count: int) -> None:
        if count > len(self.data) - self.at:
            raise ValueError("a value runs past the end of the file")
        self.at += count

    def text(self) -> str:
        length = self.number("<Q")
        start = self.at
        self.skip(length)
        if length > _MAX_TEXT:
            raise ValueError(f"a text of {length} bytes")
        return self.data[start : self.at].decode("utf-8", errors="replace")

    def skip_value(self, kind: int, depth: int = 0) -> None:
        if kind == _STRING:
            self.skip(self.number("<Q"))
        elif kind == _ARRAY:
            if depth >= _MAX_DEPTH:
                raise ValueError("arrays nested too deep")
            inner, count = self.number("<I"), self.number("<Q")
            if inner in _SIZES:
                self.skip(count * _SIZES[inner])
                return
            for _ in range(count):
                self.skip_value(inner, depth + 1)
        elif kind in _SIZES:
            self.skip(_SIZES[kind])
        else:
            raise ValueError(f"unknown type {kind}")


def _table(data: mmap.mmap) -> dict[str, str]:
    walk = _Walk(data)
    if data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    walk.skip(4)
    version = walk.number("<I")
    if version not in (2, 3):
        raise ValueError(f"GGUF version {version}; versions 2 and 3 are known")
    walk.skip(8)  # the number of tensors
    found: dict[str, str] = {}
    for _ in range(min(walk.number("<Q"), _MAX_KEYS)):
        key, kind = walk.text(), walk.number("<I")
        if key in _WANTED and kind == _STRING:
            found[key] = walk.text()
        else:
            walk.skip_value(kind)
    return found


def read(path: Path) -> Header:
    """The header of a GGUF file. Raises UsageError when there is no such file or it is not one."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = _table(data)
    except FileNotFoundError:
        raise UsageError("there is no such file", file=path, remedy="Give the path of a .gguf file.") from None
    except (OSError, ValueError, struct.error) as error:
        raise UsageError(f"not a readable GGUF file ({error})", file=path,
                         remedy="Fetch it again, or give another .gguf file.") from error
    name = " ".join(filter(None, (found.get("general.name"), found.get("general.basename"))))
    return Header(name, found.get("general.architecture", ""), found.get("tokenizer.chat_template", ""))
