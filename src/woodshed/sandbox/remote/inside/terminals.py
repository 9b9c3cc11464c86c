"""Terminals of commands, made in the box's own devpts: their master side becomes the channel that was asked for with.

The other side is handed no descriptor, which it would have to trust: it opened the channel, and what is typed and shown
passes there.
"""
# (Loaded in the box's first process, which stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import os

from woodshed.sandbox.native.inside import wire
from woodshed.sandbox.native.inside.commands import Commands, set_size
from woodshed.sandbox.remote.inside.relay import Relay


class Terminals:
    """Operations on terminals."""

    def __init__(self, commands: Commands, relay: Relay) -> None:
        self._commands, self._relay = commands, relay
        self.operations: dict[str, wire.Operation] = {"pty": self._open, "resize": self._resize}

    def _open(self, message: wire.Message, fds: list[int]) -> None:
        master = self._commands.open_terminal(message)
        self._relay.graft(message["id"], master)
        wire.send(self._commands.channel, {"id": message["id"], "started": 1})

    def _resize(self, message: wire.Message, fds: list[int]) -> None:
        """The window of the command ``target``; nothing where it was hung up."""
        fd = self._relay.grafted(message["target"])
        if fd >= 0 and os.isatty(fd):
            set_size(fd, message["rows"], message["columns"])
        wire.reply(self._commands.channel, message, {"ok": 1})
