"""Trees with their owners into and out of a box, by helpers inside (``inside/layering.py``): what makes up images."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from woodshed.errors import ImageFault
from woodshed.sandbox.native.helper import Helper
from woodshed.sandbox.native.inside import frames
from woodshed.sandbox.native.link import Link

_STALLED_S = 60.0
_REPORT_BYTES = 160 << 20
"""More than what a helper remembers of an archive."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What a layer asks for beside its files. Paths are relative to its top. ``notes``: what was left out, how often.

    They come from inside, out of a hostile archive: nothing is promised of them.
    """

    mode: int = 0o755
    opaque: tuple[str, ...] = ()
    whiteouts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


async def unpack_layer(
    link: Link, feed: Callable[[frames.Write], None], path: str, *, owners: bool, max_bytes: int
) -> Unpacked:
    """Unpack the tar stream that ``feed`` writes, a layer of an image, below the new directory ``path``.

    Raises what ``feed`` raises; UsageError for the archive, OSError, SandboxDied.
    """
    found: list[bytes] = []

    def work() -> None:
        with socket.socket(fileno=os.dup(outer)) as end:
            end.settimeout(_STALLED_S)
            with suppress(BrokenPipeError, ConnectionResetError):  # the helper says why
                feed(end.sendall)
                end.shutdown(socket.SHUT_WR)
                left = _REPORT_BYTES
                while data := end.recv(1 << 18):
                    found.append(data)
                    if (left := left - len(data)) < 0:
                        raise ImageFault("the helper inside told more than any layer holds")

    outer, helper = _start(link, {"op": "layer", "path": path, "layer": True, "owners": owners, "bytes": max_bytes})
    failure = await helper.beside(work, outer)
    await helper.ended(failure)
    return _read(b"".join(found))


async def unpack(
    link: Link, feed: Callable[[frames.Write], None], path: str, *, owners: bool, owner: tuple[int, int] = (0, 0),
    only: bool = False, max_bytes: int = 1 << 62,
) -> None:
    """Unpack the tar stream that ``feed`` writes below ``path``, over what is there; links on the way are followed.

    What is missing of ``path`` is made, ``owner``'s. With ``only`` the stream holds one file, which gets the name
    ``path`` unless a directory stands there. Raises as :func:`unpack_layer` does.
    """
    def work() -> None:
        with socket.socket(fileno=os.dup(outer)) as end:
            end.settimeout(_STALLED_S)
            with suppress(BrokenPipeError, ConnectionResetError):
                feed(end.sendall)
                end.shutdown(socket.SHUT_WR)
                end.recv(1)  # it ends

    outer, helper = _start(link, {"op": "layer", "path": path, "owners": owners, "owner": owner, "only": only,
                                  "bytes": max_bytes})
    failure = await helper.beside(work, outer)
    await helper.ended(failure)


async def copy(
    source: Link, paths: Sequence[str], target: Link, path: str, *, owners: bool, owner: tuple[int, int] | None = None,
    mode: int | None = None, only: bool = False,
) -> None:
    """Copy ``paths`` of one box to ``path`` of another: of directories their contents. Neither passes through us.

    Raises UsageError, OSError, SandboxDied.
    """
    reads, writes = os.pipe2(os.O_CLOEXEC)
    try:
        taking = Helper(target, {"op": "layer", "path": path, "owners": owners, "owner": owner or (0, 0), "only": only},
                        reads, path)
        giving = Helper(source, {"op": "layer_out", "paths": list(paths), "owner": owner, "mode": mode}, writes,
                        ", ".join(paths))
    finally:
        os.close(reads)
        os.close(writes)
    try:
        await giving.ended()
    except BaseException:
        taking.forget()
        raise
    await taking.ended()


def _start(link: Link, message: dict[str, object]) -> tuple[int, Helper]:
    outer, inner = socket.socketpair()
    try:
        helper = Helper(link, message, inner.fileno(), str(message["path"]))
    except BaseException:
        outer.close()
        raise
    finally:
        inner.close()
    return outer.detach(), helper


def _read(report: bytes) -> Unpacked:
    lines = report.split(b"\0")
    if lines[-2:] != [b"e", b""]:
        raise ImageFault("the layer was not unpacked to its end")
    by_kind: dict[bytes, list[str]] = {b"m": [], b"o": [], b"w": [], b"n": []}
    for line in lines[:-2]:
        by_kind.setdefault(line[:1], []).append(os.fsdecode(line[1:]))
    try:
        mode = int(by_kind[b"m"][0], 8) & 0o7777
    except (IndexError, ValueError):
        raise ImageFault("the helper inside told no mode of the layer's top") from None
    return Unpacked(mode, tuple(by_kind[b"o"]), tuple(by_kind[b"w"]), tuple(by_kind[b"n"]))
