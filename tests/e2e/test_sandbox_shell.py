"""``woodshed sandbox shell`` on a terminal whose size changes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path


def _until(fd: int, text: bytes, *, typing: bytes = b"") -> bytes:
    """What the terminal shows up to ``text``; while it shows nothing new, ``typing`` is typed again and again."""
    seen, deadline = b"", time.monotonic() + 120
    while text not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([fd], [], [], 0.5)[0]:
            seen += os.read(fd, 65536)
        elif typing:
            os.write(fd, typing)
    return seen


def _size(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


def test_the_shells_window_follows_ours(shed_home: Path) -> None:
    """It begins with our terminal's size, hears of a new one, and leaves our terminal as it was."""
    controller, terminal = pty.openpty()
    _size(terminal, 33, 101)
    before = termios.tcgetattr(terminal)
    shell = subprocess.Popen(
        [sys.executable, "-m", "woodshed", "sandbox", "shell"],
        env={**os.environ, "WOODSHED_HOME": str(shed_home)}, stdin=terminal, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    try:
        os.write(controller, b"size() { echo $1-$(stty size | tr ' ' x); }; trap 'size resized' WINCH; size begun\n")
        _until(controller, b"begun-33x101")
        _size(controller, 44, 120)
        shell.send_signal(signal.SIGWINCH)
        _until(controller, b"resized-44x120", typing=b"\n")  # a shell that waits for a line traps once it has one
        os.write(controller, b"exit 6\n")
        assert shell.wait(timeout=120) == 6
        assert termios.tcgetattr(terminal) == before
    finally:
        shell.kill()
        shell.wait()
        os.close(controller)
        os.close(terminal)
