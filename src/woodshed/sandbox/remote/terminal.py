"""A terminal of a sandbox that another program made: a channel to the master side, which stays inside."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress

from woodshed.errors import SandboxDied
from woodshed.interfaces import Process
from woodshed.sandbox.native.commands import Commands
from woodshed.sandbox.native.link import failed
from woodshed.sandbox.native.process import NativeProcess
from woodshed.sandbox.native.terminal import NativeTerminal, check_size


class RemoteTerminal:
    """See :class:`woodshed.interfaces.Terminal`."""

    def __init__(self, commands: Commands, ident: int, inner: NativeTerminal) -> None:
        """``inner`` reads and writes our end of the channel; ``ident`` is the command's."""
        self._commands, self._ident = commands, ident
        self.process: Process = inner.process
        self.read, self.write, self.close = inner.read, inner.write, inner.close

    def resize(self, rows: int, columns: int) -> None:
        """The window's new size; the foreground process group gets SIGWINCH. Nothing happens after close."""
        check_size(rows, columns)
        with suppress(SandboxDied):
            self._commands.link.send({"op": "resize", "target": self._ident, "rows": rows, "columns": columns})


async def open_terminal(
    commands: Commands, command: str | Sequence[str], size: tuple[int, int], cwd: str | None,
    env: Mapping[str, str] | None, user: int | None,
) -> RemoteTerminal:
    """Start ``command`` (a login shell where it is empty) on a terminal of ``size``, rows and columns.

    Raises OSError where the box has no terminal left, UsageError, SandboxDied.
    """
    check_size(*size)
    link, ident = commands.link, commands.link.next_id()
    message = commands.message(command or (commands.world.shell, "-l"), cwd, {"TERM": "xterm", **(env or {})}, user)
    message |= {"op": "pty", "rows": size[0], "columns": size[1], "id": ident}
    near, far = socket.socketpair()
    try:
        with far:
            asked = link.request(message, [far.fileno()])
        answer, _ = await asked
        if "started" not in answer:
            raise failed(answer, "no terminal")
    except BaseException as error:
        near.close()
        if isinstance(error, asyncio.CancelledError):
            commands.kill_soon(ident)
        raise
    process = NativeProcess(link, ident, link.later(ident), commands.kill_tree)
    terminal = NativeTerminal(process, near.detach(), commands.loop, commands.forget)
    commands.hold(terminal)
    return RemoteTerminal(commands, ident, terminal)
