"""Whole trees into and out of a box, and events of its files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from woodshed.errors import Unsupported
from woodshed.interfaces import FileEvent
from woodshed.sandbox.native.link import Link, World


class Transfer:
    """Moves trees and watches them. See :class:`woodshed.interfaces.Sandbox`."""

    def __init__(self, world: World, link: Link) -> None:
        self._world, self._link = world, link

    async def download(self, path: str, target: Path, *, max_bytes: int = 1_000_000_000) -> None:
        """Copy a file or folder to ``target`` of the host."""
        raise Unsupported("download: not built yet")

    async def upload_tar(self, source: BinaryIO, target: str) -> None:
        """Unpack a tar stream below ``target``."""
        raise Unsupported("tar: not built yet")

    async def download_tar(self, path: str, sink: BinaryIO, *, max_bytes: int = 1_000_000_000) -> None:
        """Write a tar stream of ``path``."""
        raise Unsupported("tar: not built yet")

    def watch(self, path: str) -> AsyncIterator[FileEvent]:
        """Events at and below a directory."""
        raise Unsupported("watch: not built yet")
