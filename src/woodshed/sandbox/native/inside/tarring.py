"""Tar streams, written and read inside a box by a helper: POSIX pax on the way out, also ustar and GNU names in.

The reader is small on purpose: a box has no Python of ours to import ``tarfile`` from, and what it would take (sparse
maps, devices, owners) is not wanted. Formats: POSIX.1-2017 pax, "ustar Interchange Format" and "pax Extended Header";
GNU tar manual, "Basic Tar Format" (long names, base-256 numbers).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from woodshed.sandbox.native.inside import frames
from woodshed.sandbox.native.inside.beneath import Beneath

_BLOCK = 512
_ZERO = bytes(_BLOCK)
_HEADER_BYTES = 1 << 20
"""Of one extended header; longer ones are refused."""
_DEVICES = {b"3": "a device", b"4": "a device", b"6": "a pipe", b"S": "a sparse member (pack without --sparse)"}
XATTR = b"SCHILY.xattr."
"""Before an extended attribute's name, in a key of pax: star(1), and so Docker and GNU tar."""
_PLAIN = frozenset(range(0x20, 0x7F))


class Refused(Exception):
    """The archive is malformed, or holds what may not be unpacked: the reason names the member."""


# -- writing -----------------------------------------------------------------------------------------------------------


def write(entries: Iterator[frames.Entry], name: str, put: frames.Write) -> None:
    """Write ``entries`` (:func:`frames.walk`) as one archive whose members lie below ``name``. Holes become zeros."""
    for path, info, fd, target in entries:
        member = os.fsencode(f"{name}/{path}" if path else name)
        if fd >= 0:
            put(_header(member, info, b"0", info.st_size, b""))
            _content(fd, info.st_size, put)
        elif stat.S_ISLNK(info.st_mode):
            put(_header(member, info, b"2", 0, os.fsencode(target)))
        else:
            put(_header(member + b"/", info, b"5", 0, b""))
    put(_ZERO * 2)


def _content(fd: int, size: int, put: frames.Write) -> None:
    """Exactly ``size`` bytes, as the header says, whatever the file is by now."""
    at = 0
    for offset, data in frames.pieces(fd, size):
        _zeros(offset - at, put)
        put(data)
        at = offset + len(data)
    _zeros(size - at + -size % _BLOCK, put)


def _zeros(count: int, put: frames.Write) -> None:
    while count > 0:
        part = min(count, frames.CHUNK)
        put(bytes(part))
        count -= part


def _header(name: bytes, info: os.stat_result, kind: bytes, size: int, target: bytes) -> bytes:
    extended = {}
    if len(name) > 100 or not _PLAIN.issuperset(name):
        extended[b"path"] = name
    if len(target) > 100 or not _PLAIN.issuperset(target):
        extended[b"linkpath"] = target
    if size >= 1 << 33:
        extended[b"size"] = b"%d" % size
    before = b""
    if extended:
        records = b"".join(record(key, value) for key, value in extended.items())
        before = _block(b"././@PaxHeader", 0o644, len(records), 0, b"x", b"") + records + bytes(-len(records) % _BLOCK)
    mtime = min(max(0, int(info.st_mtime)), (1 << 33) - 1)
    return before + _block(name[:100], info.st_mode & 0o777, 0 if size >= 1 << 33 else size, mtime, kind, target[:100])


def record(key: bytes, value: bytes) -> bytes:
    """``LENGTH KEY=VALUE\\n``, where the length counts itself."""
    bare = len(key) + len(value) + 3
    length = bare + len(str(bare))
    if len(str(length)) > len(str(bare)):
        length = bare + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)


def _block(name: bytes, mode: int, size: int, mtime: int, kind: bytes, target: bytes) -> bytes:
    numbers = b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (mode, 0, 0, size, mtime)
    block = name.ljust(100, b"\0") + numbers + b" " * 8 + kind + target.ljust(100, b"\0") + b"ustar\x0000"
    block = block.ljust(_BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


# -- reading -----------------------------------------------------------------------------------------------------------


def read(stream: frames.Reader, tree: Beneath) -> None:
    """Unpack an archive into ``tree``. What came before a refused member stays. Raises Refused, OSError."""
    try:
        archive = Archive(stream)
        while (member := archive.next()) is not None:
            member.place(tree)
    except frames.Malformed:
        raise Refused("the archive ends early") from None


class Member:
    """One entry as its headers tell of it. ``kind``: 0 file, 1 hard link, 2 link, 5 directory, others as in POSIX."""

    def __init__(self, stream: frames.Reader, kind: bytes, header: bytes, names: dict[str, bytes]) -> None:
        self._stream, self.kind, self.header, self.names = stream, kind, header, names
        self.raw = names.get("path") or names.get("long") or _own_name(header)
        self.size = decimal(names["size"]) if "size" in names else number(header[124:136])
        self.target = names.get("linkpath") or names.get("longlink") or _text(header[157:257])
        self._mode, self._mtime = number(header[100:108]) & 0o777, max(0, number(header[136:148]))
        if kind == b"\0" or kind in (b"0", b"7"):
            self.kind = b"5" if self.raw.endswith(b"/") and kind == b"\0" else b"0"

    def place(self, tree: Beneath) -> None:
        """Make it in ``tree``, nobody's but its owner's. Raises Refused, OSError."""
        try:
            self._place(tree, self.path(self.raw))
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise Refused(f"{os.fsdecode(self.raw)!r}: a link or file stands in its way") from None

    def _place(self, tree: Beneath, path: str) -> None:
        if self.kind == b"5":
            self.skip(self.size)
            if path:
                tree.parents(path)
            tree.directory(path, self._mode)
            return
        if not path:
            raise Refused(f"{os.fsdecode(self.raw)!r}: no name of a file")
        tree.parents(path)
        if self.kind == b"0":
            tree.file(path, self._mode, self.size, self.pieces(), float(self._mtime))
            self.skip(-self.size % _BLOCK, padded=False)
        elif self.kind == b"2":
            if not self.target or b"\0" in self.target:
                raise Refused(f"{os.fsdecode(self.raw)!r}: a link to nothing")
            tree.link(path, os.fsdecode(self.target))
            self.skip(self.size)
        elif self.kind == b"1":
            tree.hard(path, self.path(self.target))
            self.skip(self.size)
        else:
            why = _DEVICES.get(self.kind, f"an entry of unknown kind {self.kind!r}")
            raise Refused(f"{os.fsdecode(self.raw)!r}: {why}")

    def path(self, raw: bytes) -> str:
        """Relative and normalised. Raises Refused."""
        if raw.startswith(b"/"):
            raise Refused(f"{os.fsdecode(raw)!r}: an absolute path")
        parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            raise Refused(f"{os.fsdecode(raw)!r}: leads out of the target")
        path = b"/".join(parts)
        try:
            if path:
                frames.check(path)
        except frames.Malformed:
            raise Refused(f"{os.fsdecode(raw[:80])!r}: no path") from None
        return os.fsdecode(path)

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """A file's content, with where it lies; to be followed by :meth:`skip` of the padding."""
        offset = 0
        while offset < self.size:
            data = self._stream.some(min(self.size - offset, frames.CHUNK))
            yield offset, data
            offset += len(data)

    def skip(self, size: int, *, padded: bool = True) -> None:
        """Pass over ``size`` bytes, and over what fills their last block."""
        left = size + (-size % _BLOCK if padded else 0)
        while left:
            left -= len(self._stream.some(min(left, frames.CHUNK)))


class Archive:
    """The members of one stream, in order. With ``attributes``, what pax says of owners and attributes is kept, too."""

    def __init__(self, stream: frames.Reader, *, attributes: bool = False) -> None:
        self._stream, self._attributes = stream, attributes
        self._global: dict[str, bytes] = {}
        self._left = frames.ENTRIES

    def next(self) -> Member | None:
        """The next member, its extended headers read; None at the end. Raises Refused."""
        names = dict(self._global)
        while True:
            header = self._stream.exactly(_BLOCK)
            if header == _ZERO:
                if self._stream.exactly(_BLOCK) != _ZERO:
                    raise Refused("the archive is malformed: a lone block of zeros")
                return None
            self._left -= 1
            if self._left < 0:
                raise Refused(f"the archive has more than {frames.ENTRIES} entries")
            _verify(header)
            kind = header[156:157]
            if kind == b"g":
                _extend(self._global, self._extension(header))
                names = self._global | names
            elif kind == b"x":
                _extend(names, self._extension(header), attributes=self._attributes)
            elif kind in (b"L", b"K"):
                names["long" if kind == b"L" else "longlink"] = _text(self._extension(header))
            else:
                member = Member(self._stream, kind, header, names)
                if "sparse" in names:
                    raise Refused(f"{os.fsdecode(member.raw)!r}: {_DEVICES[b'S']}")
                return member

    def _extension(self, header: bytes) -> bytes:
        size = number(header[124:136])
        if size > _HEADER_BYTES:
            raise Refused(f"the archive is malformed: a header of {size} bytes")
        return self._stream.exactly(size + -size % _BLOCK)[:size]


def _verify(header: bytes) -> None:
    summed = sum(header[:148]) + 8 * 0x20 + sum(header[156:])
    try:
        told = number(header[148:156])
    except Refused:
        told = -1
    if told != summed:
        raise Refused("this is no tar archive, or a damaged or compressed one: a header's sum is wrong")


def number(field: bytes) -> int:
    """Octal digits, or GNU's base-256 where the first bit is set. Raises Refused for others and negative ones."""
    if field[0] == 0x80:
        return _bounded(int.from_bytes(field[1:], "big"))
    digits = field.strip(b" \0")
    if not digits:
        return 0
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise Refused("the archive is malformed: a number that is none")
    return int(digits, 8)


def _bounded(value: int) -> int:
    if value >= 1 << 62:
        raise Refused("the archive is malformed: a number out of range")
    return value


def decimal(field: bytes) -> int:
    """Digits of pax. Raises Refused."""
    if not field.isdigit() or len(field) > 18:
        raise Refused("the archive is malformed: a size that is none")
    return int(field)


def _text(field: bytes) -> bytes:
    return field.split(b"\0", 1)[0]


def _own_name(header: bytes) -> bytes:
    name = _text(header[:100])
    # GNU's own magic, "ustar  ", has other things where POSIX has the prefix.
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _extend(names: dict[str, bytes], records: bytes, *, attributes: bool = False) -> None:
    """Read pax records into ``names``. Raises Refused."""
    at = 0  # not cut off one by one: a header of tiny records would take minutes
    while at < len(records):
        digits, space, _ = records[at:at + 20].partition(b" ")
        if not space or not digits.isdigit():
            raise Refused("the archive is malformed: a pax record without its length")
        length = int(digits)
        record = records[at + len(digits) + 1:at + length]
        key, equals, value = record[:-1].partition(b"=")
        if not len(digits) + 1 < length <= len(records) - at or not equals or record[-1:] != b"\n":
            raise Refused("the archive is malformed: a pax record of a wrong length")
        if key in (b"path", b"linkpath", b"size"):
            names[key.decode()] = value
        elif key.startswith(b"GNU.sparse"):
            names["sparse"] = value
        elif attributes and key.startswith((b"uid", b"gid", b"mtime", XATTR)):
            names[os.fsdecode(key)] = value
        at += length
