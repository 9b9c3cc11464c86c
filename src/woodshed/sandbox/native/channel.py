"""The engine's end of a message socket, in the event loop: no threads, descriptors pass both ways."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from woodshed.sandbox.native.inside import wire

_GONE = (BrokenPipeError, ConnectionResetError)


class Channel:
    """Delivers every message to ``on_message``, which owns its descriptors; ``on_end`` is called when no more come.

    A send never blocks and never raises: ``on_end`` says that the peer is gone, or that a message cannot be sent at all
    (no descriptors or no memory left), which would be waited for in vain.
    """

    def __init__(
        self,
        end: socket.socket,
        on_message: Callable[[wire.Message, list[int]], None],
        on_end: Callable[[], None],
    ) -> None:
        self._socket, self._on_message, self._on_end = end, on_message, on_end
        self._queue: deque[tuple[wire.Message, list[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._open = True
        end.setblocking(False)
        # The number, not the socket: asyncio formats what it does not know yet, and a socket asks the kernel for that.
        self._fd = end.fileno()
        self._loop.add_reader(self._fd, self._readable)

    def send(self, message: wire.Message, fds: Sequence[int] = ()) -> None:
        """Send, or queue while the peer does not read. The caller keeps its descriptors."""
        if not self._open:
            return
        if not self._queue:
            try:
                wire.send(self._socket, message, fds)
                return
            except BlockingIOError:
                self._loop.add_writer(self._fd, self._writable)
            except _GONE:
                return  # the reader will find out, and hear its last words
            except OSError:
                self._hang_up()
                return
        self._queue.append((message, [os.dup(fd) for fd in fds]))

    def _writable(self) -> None:
        while self._queue:
            message, fds = self._queue[0]
            try:
                wire.send(self._socket, message, fds)
            except BlockingIOError:
                return
            except _GONE:
                pass
            except OSError:
                self._hang_up()
                return
            self._drop_first()
        self._loop.remove_writer(self._fd)

    def _drop_first(self) -> None:
        for fd in self._queue.popleft()[1]:
            os.close(fd)

    def _readable(self) -> None:
        try:
            message, fds = wire.receive(self._socket)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            message, fds = None, []
        if message is None:
            self._hang_up()
        else:
            self._on_message(message, fds)

    def _hang_up(self) -> None:
        self.close()
        self._on_end()

    def finish(self) -> None:
        """Say nothing more; the peer sees the end, and its last words still arrive."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Hang up; the peer sees the end. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        while self._queue:
            self._drop_first()
        self._socket.close()
