"""Joins the user's terminal to one inside a sandbox: keys in, output out, window size along."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from woodshed.errors import UsageError
from woodshed.interfaces import Terminal

_TAIL_S = 0.2
"""What the command still had to say when it ended is shown; a background job may hold the terminal open longer."""


def size() -> tuple[int, int]:
    """Rows and columns of this terminal, and those of a usual one where it does not say."""
    columns, rows = os.get_terminal_size(sys.stdin.fileno())
    return rows or 24, columns or 80


async def join(terminal: Terminal) -> int:
    """Pass bytes between this terminal and ``terminal`` until its command ends; its exit code. Raises SandboxDied."""
    loop = asyncio.get_running_loop()
    here = sys.stdin.fileno()
    keys: asyncio.Queue[bytes] = asyncio.Queue()

    def typed() -> None:
        data = os.read(here, 4096)
        if data:
            keys.put_nowait(data)
        else:
            loop.remove_reader(here)

    with _raw(here):
        loop.add_signal_handler(signal.SIGWINCH, _resize, terminal)
        loop.add_reader(here, typed)
        pumps = [asyncio.create_task(_type(terminal, keys)), asyncio.create_task(_show(terminal, sys.stdout.fileno()))]
        try:
            code = await terminal.process.wait()
            await asyncio.wait([pumps[1]], timeout=_TAIL_S)
            return code
        finally:
            loop.remove_reader(here)
            loop.remove_signal_handler(signal.SIGWINCH)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


async def _type(terminal: Terminal, keys: asyncio.Queue[bytes]) -> None:
    with suppress(BrokenPipeError):  # it has ended; its exit code says the rest
        while True:
            await terminal.write(await keys.get())


async def _show(terminal: Terminal, there: int) -> None:
    while data := await terminal.read():
        view = memoryview(data)
        while view:
            view = view[os.write(there, view):]


def _resize(terminal: Terminal) -> None:
    with suppress(OSError, UsageError):
        terminal.resize(*size())


@contextmanager
def _raw(fd: int) -> Iterator[None]:
    """The terminal passes every key on, and is as it was afterwards."""
    before = termios.tcgetattr(fd)
    tty.setraw(fd, termios.TCSADRAIN)  # what was typed ahead is kept
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
