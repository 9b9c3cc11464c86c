"""Where a sandbox's traffic comes in: listeners and a socket for questions, served at a pace one sandbox may have."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress

from woodshed.sandbox.egress import dns

RATE, BURST = 200.0, 400.0
"""Connections or questions a second, and at once after a pause: what comes faster waits in the kernel, or is lost."""
_IP_PKTINFO = 8
"""include/uapi/linux/in.h; Python has no name for it before 3.14."""
_SPACE = socket.CMSG_SPACE(12)
_AT_ONCE = 16
_BREATH_S, _TURN_S = 0.5, 0.1
"""Until an accept is tried again for which this process had no descriptor left, or the sandbox no seat."""


class Full(Exception):
    """What arrives has to wait in the kernel."""


class Pace:
    """A bucket of tokens."""

    def __init__(self) -> None:
        self._left, self._last = BURST, time.monotonic()

    def wait_s(self) -> float:
        """Take one: 0 where it was there, else how long until it is."""
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._last) * RATE)
        self._last = now
        if self._left < 1:
            return (1 - self._left) / RATE
        self._left -= 1
        return 0.0


class Door:
    """A socket that is read from as things arrive, at the pace. ``take`` takes one; else BlockingIOError or Full."""

    def __init__(self, end: socket.socket, take: Callable[[], None]) -> None:
        """``end`` is the door's own now."""
        end.setblocking(False)
        self._socket, self._fd, self._take, self._pace = end, end.fileno(), take, Pace()
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        for _ in range(_AT_ONCE):
            if wait := self._pace.wait_s():
                return self._pause(wait)
            try:
                self._take()
            except BlockingIOError:
                return None
            except Full:
                return self._pause(_TURN_S)
            except ConnectionError:
                continue  # it went away again before it was accepted
            except OSError:
                return self._pause(_BREATH_S)
        return None

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._fd)
        self._later = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._later = None
        self._loop.add_reader(self._fd, self._readable)

    def close(self) -> None:
        """Nothing comes in any more. Idempotent."""
        if self._later is not None:
            self._later.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._fd = -1
            self._socket.close()


def door(listener: socket.socket, admit: Callable[[socket.socket], None], free: Callable[[], bool]) -> Door:
    """For a listener: ``admit`` gets each connection, which does not block and is its own, while it is ``free``."""

    def take() -> None:
        if not free():
            raise Full
        end, _ = listener.accept()
        end.setblocking(False)
        admit(end)

    return Door(listener, take)


def questions(end: socket.socket, answer: Callable[[bytes], bytes | None]) -> Door:
    """For a UDP socket bound to any address: answers come from the very address that was asked."""
    end.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)

    def take() -> None:
        data, ancillary, _, asker = end.recvmsg(dns.LARGEST + 1, _SPACE)
        said = answer(data)
        if said is None:
            return
        # struct in_pktinfo: interface, the address to answer from, the address that was asked. ip(7)
        asked = next((value[8:12] for level, kind, value in ancillary
                      if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO)), None)
        control = [] if asked is None else [
            (socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("i4s4s", 0, asked, b"\0\0\0\0"))]
        with suppress(OSError):  # a full queue, an asker that is gone: a question may be lost
            end.sendmsg([said], control, 0, asker)

    return Door(end, take)
