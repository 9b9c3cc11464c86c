"""A stored layer becomes its plain tar, in a stream: decompressed within bounds, both digests checked."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from woodshed.errors import ImageFault
from woodshed.sandbox.images.oci import Descriptor

CHUNK = 1 << 18
_GZIP, _ZSTD, _BZIP2, _XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\x00"
RATIO, FREE_BYTES = 250, 256 << 20
"""What unpacks to more than ``FREE_BYTES`` and this many times its own size is a bomb: programs come to ten."""


def plain(stored: BinaryIO, layer: Descriptor, diff_id: str, most: int, name: str) -> Iterator[bytes]:
    """The plain tar of ``layer``, in pieces of at most about ``CHUNK``; whole and true only when the last has come.

    Raises ImageFault: not the size or digest that the manifest tells, not the tar of ``diff_id``, more than ``most``
    bytes, a bomb, a compression that cannot be read here.
    """
    inner = hashlib.sha256()
    counted = _Counted(stored, layer, name)
    total = 0
    for data in inflate(counted.pieces(), name):
        total += len(data)
        if total > most:
            raise ImageFault(f"{name}: a layer unpacks to more than {most >> 20} MB (setting image_mb)")
        if total > FREE_BYTES and total > RATIO * counted.bytes:
            raise ImageFault(f"{name}: a layer unpacks to more than {RATIO} times its size: a bomb")
        inner.update(data)
        yield data
    for _ in counted.pieces():  # what lies behind the compressed stream counts for the outer digest
        pass
    counted.check()
    if f"sha256:{inner.hexdigest()}" != diff_id:
        raise ImageFault(f"{name}: a layer's content is not what the configuration says ({diff_id})")


class _Counted:
    """Reads and hashes what is stored."""

    def __init__(self, stored: BinaryIO, layer: Descriptor, name: str) -> None:
        self._stored, self._layer, self._name = stored, layer, name
        self._hash, self.bytes = hashlib.sha256(), 0

    def pieces(self) -> Iterator[bytes]:
        while data := self._stored.read(CHUNK):
            self.bytes += len(data)
            if 0 <= self._layer.size < self.bytes:
                raise ImageFault(f"{self._name}: a layer is larger than its manifest says")
            self._hash.update(data)
            yield data

    def check(self) -> None:
        if self._layer.digest and f"sha256:{self._hash.hexdigest()}" != self._layer.digest:
            raise ImageFault(f"{self._name}: what came as {self._layer.digest} is something else")


def inflate(pieces: Iterator[bytes], name: str, *, more: bool = False) -> Iterator[bytes]:
    """``pieces`` decompressed, as their first bytes tell; ``more``: bzip2 and xz as well, which ADD takes.

    Raises ImageFault.
    """
    first = b""
    for data in pieces:
        first += data
        if len(first) >= 6:
            break

    def whole() -> Iterator[bytes]:
        yield first
        yield from pieces

    try:
        if first.startswith(_GZIP):
            yield from _drained(whole(), lambda: zlib.decompressobj(wbits=31))
        elif first.startswith(_ZSTD):
            yield from _zstd(whole(), name)
        elif more and first.startswith(_BZIP2):
            import bz2

            yield from _drained(whole(), lambda: _Limited(bz2.BZ2Decompressor()))
        elif more and first.startswith(_XZ):
            import lzma

            yield from _drained(whole(), lambda: _Limited(lzma.LZMADecompressor(memlimit=256 << 20)))
        else:
            yield from whole()
    except (zlib.error, EOFError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ImageFault(f"{name}: a layer is no {_called(first)} stream, or is cut short ({error})") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] in ("lzma", "_lzma", "zstandard"):
            raise ImageFault(f"{name}: a layer is no {_called(first)} stream ({error})") from None
        raise


def _called(first: bytes) -> str:
    known = {_GZIP: "gzip", _ZSTD: "zstd", _BZIP2: "bzip2", _XZ: "xz"}
    return next((called for magic, called in known.items() if first.startswith(magic)), "tar")


class _Limited:
    """A decompressor of the standard library with zlib's names: it keeps what it has not taken in itself."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.unconsumed_tail = inner, b""

    def decompress(self, data: bytes, most: int) -> bytes:
        out: bytes = self._inner.decompress(data, most)
        return out

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data)


def _drained(pieces: Iterator[bytes], make: Callable[[], Any]) -> Iterator[bytes]:
    """One stream after the other, as gzip(1) takes them; never more than ``CHUNK`` of output at a time."""
    stream, begun = make(), False
    for data in pieces:
        full = False
        while data or full:
            begun = True
            out = stream.decompress(data, CHUNK)
            if out:
                yield out
            full = len(out) == CHUNK and not stream.eof  # more may be held back, though all was taken in
            data = stream.unused_data if stream.eof else stream.unconsumed_tail
            if stream.eof:
                stream, begun = make(), False
                data = data.lstrip(b"\0")  # padding, as on tapes
    if begun:
        raise EOFError("it ends early")


def _zstd(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise ImageFault(f"{name}: a layer is compressed with zstd; install 'woodshed[zstd]' to read it") from None
    # A window is memory: 128 MB is what zstd itself takes without being asked (--long=27).
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
        cast(BinaryIO, _Readable(pieces)), read_across_frames=True, read_size=CHUNK)
    while data := reader.read(CHUNK):
        yield data


class _Readable:
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._held = pieces, b""

    def read(self, size: int = -1) -> bytes:
        while not self._held:
            try:
                self._held = next(self._pieces)
            except StopIteration:
                return b""
        data, self._held = self._held[:size], self._held[size:]
        return data
