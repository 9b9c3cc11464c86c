"""Joins the user's terminal to one inside a sandbox: keys in, output out, window size along."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress


async def join(fd: int, ended: asyncio.Future[int]) -> int:
    """Pass bytes between this terminal and ``fd`` (the master side of one) until ``ended``; the exit code it holds."""
    loop = asyncio.get_running_loop()
    here, there = sys.stdin.fileno(), sys.stdout.fileno()
    os.set_blocking(fd, False)
    closed = loop.create_future()

    def keys() -> None:
        data = os.read(here, 4096)
        if data:
            with suppress(OSError):
                os.write(fd, data)
        else:
            loop.remove_reader(here)

    def output() -> None:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        except OSError:  # EIO: the last process on the terminal is gone
            data = b""
        if data:
            os.write(there, data)
        else:
            loop.remove_reader(fd)
            if not closed.done():
                closed.set_result(None)

    with _raw(here):
        _resize(here, fd)
        loop.add_signal_handler(signal.SIGWINCH, _resize, here, fd)
        loop.add_reader(here, keys)
        loop.add_reader(fd, output)
        try:
            code = await ended
            with suppress(TimeoutError):  # what it still had to say; a background job may hold the terminal open
                await asyncio.wait_for(asyncio.shield(closed), 0.2)
            return code
        finally:
            loop.remove_reader(here)
            loop.remove_reader(fd)
            loop.remove_signal_handler(signal.SIGWINCH)


def _resize(here: int, fd: int) -> None:
    with suppress(OSError):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, fcntl.ioctl(here, termios.TIOCGWINSZ, b"\0" * 8))


@contextmanager
def _raw(fd: int) -> Iterator[None]:
    """The terminal passes every key on, and is as it was afterwards."""
    before = termios.tcgetattr(fd)
    tty.setraw(fd, termios.TCSADRAIN)  # what was typed ahead is kept
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
