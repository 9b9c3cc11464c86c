"""Messages between the engine, the fork server and each PID 1: one JSON object a packet, with descriptors beside it.

A message larger than a packet travels in a memfd, as the first descriptor of a packet that is the single byte ``M``.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

PACKET = 60_000
"""Bytes sent as a packet; half of the smallest default socket buffer (net.core.wmem_default) and to spare."""
LARGEST = 64 << 20
"""Bytes of a message that are read from a memfd; more is refused, so that no peer can make us swell."""
MAX_FDS = 250
"""SCM_MAX_FD is 253 (include/net/scm.h)."""
_BUFFER = 1 << 16
"""Bytes offered for a packet: more than one has, less than malloc would map and unmap anew each time (128 KiB)."""
_SPACE = socket.CMSG_SPACE(MAX_FDS * 4)

Message = dict[str, Any]
Operation = Callable[[Message, list[int]], None]
"""What PID 1 does for one message and its descriptors; it answers by :func:`reply`, now or later."""


def pack(message: Message) -> tuple[bytes, int | None]:
    """The packet of ``message``, and the memfd that must travel first with it (the caller closes it), or None."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) <= PACKET:
        return data, None
    fd = _memory()
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]
    return b"M", fd


def _memory() -> int:
    try:
        return os.memfd_create("message", os.MFD_CLOEXEC)
    except OSError:
        # A box whose policy lets nothing be written and run has none, for that could be run.
        return os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)  # noqa: S108 (the box's)


def send(channel: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one message. Raises OSError when the peer is gone, BlockingIOError when it does not read."""
    data, large = pack(message)
    sent = [*fds] if large is None else [large, *fds]
    try:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(sent)}i", *sent))] if sent else []
        channel.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
    finally:
        if large is not None:
            os.close(large)


def reply(channel: socket.socket, asked: Message, answer: Message, fd: int | None = None) -> None:
    """Answer the message ``asked``, handing over ``fd``; the answer says so, as a receiver without room loses it."""
    answer["id"] = asked["id"]
    if fd is not None:
        answer["fds"] = 1
    try:
        send(channel, answer, [] if fd is None else [fd])
    finally:
        if fd is not None:
            os.close(fd)


def receive(channel: socket.socket) -> tuple[Message | None, list[int]]:
    """The next message and its descriptors (close-on-exec); None when the peer is gone.

    Raises BlockingIOError where nothing is there yet, ValueError for what is no message.
    """
    try:
        data, ancillary, _, _ = channel.recvmsg(_BUFFER, _SPACE, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None, []
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.extend(struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4]))
    if not data:
        return None, fds
    if data == b"M":
        if not fds:
            raise ValueError("a large message without its memfd")
        data = _large(fds.pop(0))
    message = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError("a message must be an object")
    return message, fds


def _large(fd: int) -> bytes:
    try:
        size = os.fstat(fd).st_size
        if size > LARGEST:
            raise ValueError(f"a message of {size} bytes; at most {LARGEST}")
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)
