"""A sandbox whose files are read and written with the rights of the agent's user, as its commands run.

The sandbox's own file calls are its root's: tools that use them would read what the user may not, and leave behind
files that are not the user's.
"""

from __future__ import annotations

import errno
import os
from typing import Any, cast

from woodshed.interfaces import FileInfo, Sandbox

_WRITE = """\
mkdir -p -- "$(dirname -- "$1")" || exit 1
test -e "$1" || new=1
cat > "$1" || exit 1
test -z "$new" || chmod "$2" "$1"
"""
_PATIENCE_S = 60.0
"""For one file; a FIFO in its place would hold it up for ever."""


def as_user(sandbox: Sandbox, user: str) -> Sandbox:
    """``sandbox`` itself where nobody in particular (or root) acts in it."""
    return cast(Sandbox, _AsUser(sandbox)) if user not in ("", "0", "root") else sandbox


class _AsUser:
    """What is not a matter of rights is the sandbox's own."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """As :meth:`Sandbox.read`."""
        info = await self._sandbox.stat(path)
        if info.kind == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        await self._may("r", path)
        argv = ["head", "-c", str(max_bytes + 1), "--", path]
        done = await self._sandbox.exec(argv, output_bytes=max_bytes + 2, timeout_s=_PATIENCE_S)
        if done.exit_code or done.timed_out:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        if len(done.stdout) > max_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return done.stdout

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """As :meth:`Sandbox.write`, but that a file keeps its mode and its owner."""
        argv = ["sh", "-c", _WRITE, "sh", path, oct(mode)[2:]]
        done = await self._sandbox.exec(argv, stdin=content, timeout_s=_PATIENCE_S)
        if done.exit_code or done.timed_out:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    async def list(self, path: str) -> list[FileInfo]:
        """As :meth:`Sandbox.list`."""
        entries = await self._sandbox.list(path)
        await self._may("r", path)
        return entries

    async def stat(self, path: str) -> FileInfo:
        """As :meth:`Sandbox.stat`."""
        info = await self._sandbox.stat(path)
        if (parent := os.path.dirname(path)):  # noqa: PTH120 - a path of the sandbox, not of the host
            await self._may("x", parent)
        return info

    async def _may(self, how: str, path: str) -> None:
        if (await self._sandbox.exec(["test", f"-{how}", path])).exit_code:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
