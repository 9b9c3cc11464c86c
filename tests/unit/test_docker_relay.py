"""The road of messages over a byte stream: what is handed over arrives, in order, within bounds, whatever is sent."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.sandbox.remote.inside.relay import WINDOW, Broken, Relay, memory


class _Side:
    """One end, driven by hand."""

    def __init__(self, first: int, *, wary: bool = False) -> None:
        self.got: list[tuple[dict[str, object], list[int]]] = []
        self.poller, self.watched = select.poll(), set[int]()
        self.relay = Relay(first, lambda data, fds: self.got.append((json.loads(data), fds)), self._watch,
                           wary=wary)

    def _watch(self, fd: int, events: int) -> None:
        if events:
            self.poller.register(fd, events)
            self.watched.add(fd)
        else:
            self.poller.unregister(fd)
            self.watched.discard(fd)

    def turn(self) -> bool:
        """Do what can be done now; whether there was something."""
        ready = self.poller.poll(0)
        for fd, events in ready:
            self.relay.ready(fd, events)
        return bool(ready)


@contextmanager
def _sides() -> Iterator[tuple[_Side, _Side]]:
    near, far = _Side(1, wary=True), _Side(2)
    try:
        yield near, far
    finally:
        for side in (near, far):
            side.relay.forget()
            for _, fds in side.got:
                for fd in fds:
                    os.close(fd)


def _exchange(near: _Side, far: _Side, step: int = 1 << 20) -> None:
    """Until neither has anything to say or do."""
    while True:
        moved = near.turn() | far.turn()
        for one, other in ((near, far), (far, near)):
            if one.relay.outgoing:
                piece = bytes(one.relay.outgoing[:step])
                one.relay.sent(len(piece))
                other.relay.feed(piece)
                moved = True
        if not moved:
            return


def _take(side: _Side) -> tuple[dict[str, object], list[int]]:
    return side.got.pop(0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=3000), max_size=12), st.integers(1, 700))
def test_what_is_written_on_one_side_is_read_on_the_other(pieces: list[bytes], step: int) -> None:
    """A pipe's writing end crosses: bytes arrive whole and in order however the stream is cut, and so does the end."""
    with _sides() as (near, far):
        reading, writing = os.pipe()
        near.relay.send(b'{"id":1}', [writing], asks=True)
        os.close(writing)
        _exchange(near, far, step)
        _, (given_,) = _take(far)
        for piece in pieces:
            os.write(given_, piece)
            _exchange(near, far, step)
        os.close(given_)
        _exchange(near, far, step)
        with os.fdopen(reading, "rb") as file:
            assert file.read() == b"".join(pieces)
        assert not near.relay.flows
        assert not far.relay.flows


def test_an_end_overtakes_no_output() -> None:
    """The end of a command is handed on when what it wrote is in the pipe, though nobody has read the pipe yet."""
    with _sides() as (near, far):
        reading, writing = os.pipe()
        near.relay.send(b'{"id":7}', [writing], asks=True)
        os.close(writing)
        _exchange(near, far)
        _, (given_,) = _take(far)
        os.write(given_, b"x" * 60_000)
        far.relay.send(b'{"id":7,"exit":0}', [], asks=False)  # not polled since: the relay itself looks
        _exchange(near, far)
        assert _take(near)[0]["exit"] == 0
        assert len(os.read(reading, 1 << 20)) == 60_000
        os.close(given_)
        os.close(reading)


def test_a_slow_reader_holds_the_writer_back() -> None:
    """Of a flood no more is under way than a window and what both pipes hold; reading lets it go on."""
    with _sides() as (near, far):
        reading, writing = os.pipe()
        near.relay.send(b'{"id":1}', [writing], asks=True)
        os.close(writing)
        _exchange(near, far)
        _, (given_,) = _take(far)
        os.set_blocking(given_, False)
        sent = 0
        for _ in range(100):
            try:
                sent += os.write(given_, b"x" * 65_536)
            except BlockingIOError:
                _exchange(near, far)
        assert sent <= WINDOW + 3 * 65_536
        read = 0
        os.close(given_)
        while read < sent:
            read += len(os.read(reading, 1 << 16))
            _exchange(near, far)
        assert (read, os.read(reading, 1)) == (sent, b"")
        os.close(reading)


def test_input_that_nobody_takes_breaks_its_pipe() -> None:
    """When the reader on the far side is gone, who writes on the near side gets EPIPE."""
    with _sides() as (near, far):
        reading, writing = os.pipe()
        near.relay.send(b'{"id":1}', [reading], asks=True)
        os.close(reading)
        _exchange(near, far)
        os.close(_take(far)[1][0])
        os.write(writing, b"x")
        _exchange(near, far)
        with pytest.raises(BrokenPipeError):
            os.write(writing, b"y")
        os.close(writing)


def test_sockets_go_both_ways_and_files_with_their_content() -> None:
    """A socket stays two-way with an end each way; a file arrives as content, no more of it than was asked for."""
    with _sides() as (near, far):
        ours, theirs = socket.socketpair()
        near.relay.send(b'{"id":1}', [theirs.fileno()], asks=True)
        theirs.close()
        _exchange(near, far)
        with ours, socket.socket(fileno=_take(far)[1].pop()) as given_:
            ours.sendall(b"there")
            _exchange(near, far)
            assert given_.recv(10) == b"there"
            given_.sendall(b"back")
            given_.shutdown(socket.SHUT_WR)
            _exchange(near, far)
            assert (ours.recv(10), ours.recv(10)) == (b"back", b"")
        near.relay.send(b'{"id":2,"most":3}', [], asks=True)
        _exchange(near, far)
        file = memory(b"content")
        far.relay.send(b'{"id":2}', [file], asks=False)
        os.close(file)
        _exchange(near, far)
        _, (copy,) = near.got[-1]
        assert os.read(copy, 100) == b"con"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_a_hostile_stream_is_refused_or_waited_for(data: bytes) -> None:
    """Bytes that are none of ours raise Broken or are the beginning of something; nothing else comes of them."""
    with _sides() as (near, _):
        try:
            near.relay.feed(data)
        except Broken:
            return
        assert not near.relay.flows


def test_the_other_side_opens_no_channel_and_sends_nothing_unasked() -> None:
    """A descriptor, or a frame larger than anything asked for, is refused from a box; without that care it is taken."""
    for kind in (b"i", b"o", b"s"):
        entry = kind + (2).to_bytes(4, "big") + bytes(4)
        body = b"\x01" + entry + b'{"id":1}'
        frame = b"P" + bytes(4) + len(body).to_bytes(4, "big") + body
        with _sides() as (near, far):
            with pytest.raises(Broken):
                near.relay.feed(frame)
            far.relay.feed(frame)  # the control
            assert len(far.relay.flows) == 1
    huge = b"P" + bytes(4) + (200 << 20).to_bytes(4, "big")
    with _sides() as (near, far):
        far.relay.feed(huge)
        with pytest.raises(Broken):
            near.relay.feed(huge)
    with _sides() as (near, far):
        near.relay.send(b'{"id":1,"most":400000000}', [], asks=True)
        near.relay.feed(huge)


def test_more_than_a_window_is_refused() -> None:
    """Who sends on without leave is cut off: memory does not grow with what a box sends."""
    with _sides() as (near, far):
        reading, writing = os.pipe()
        near.relay.send(b'{"id":1}', [writing], asks=True)
        os.close(writing)
        _exchange(near, far)
        (number,) = near.relay.flows
        frame = b"D" + number.to_bytes(4, "big") + (1 << 16).to_bytes(4, "big") + bytes(1 << 16)
        with pytest.raises(Broken):
            near.relay.feed(frame * 64)
        os.close(reading)


def test_a_terminal_takes_the_place_of_a_channel() -> None:
    """What is typed at the one end reaches the terminal, what it shows comes back, and so does its end."""
    with _sides() as (near, far):
        ours, theirs = socket.socketpair()
        near.relay.send(b'{"id":5}', [theirs.fileno()], asks=True)
        theirs.close()
        _exchange(near, far)
        _, fds = _take(far)
        master, slave = os.openpty()
        far.relay.graft(5, master)
        for fd in fds:
            os.close(fd)
        assert os.isatty(far.relay.grafted(5))
        ours.send(b"typed\n")
        _exchange(near, far)
        assert os.read(slave, 100) == b"typed\n"
        os.write(slave, b"shown\n")
        far.relay.send(b'{"id":5,"exit":0}', [], asks=False)
        _exchange(near, far)
        assert _take(near)[0]["exit"] == 0
        assert ours.recv(100) == b"typed\r\nshown\r\n"
        os.close(slave)
        _exchange(near, far)
        assert ours.recv(100) == b""
        ours.close()
        _exchange(near, far)
        assert not far.relay.flows
        assert far.relay.grafted(5) == -1


def test_a_terminal_without_a_channel_is_closed() -> None:
    """Where no two-way channel came along there is no terminal, and nothing stays open."""
    with _sides() as (_, far):
        master, slave = os.openpty()
        with pytest.raises(OSError, match="no channel"):
            far.relay.graft(9, master)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(master)
        os.close(slave)
