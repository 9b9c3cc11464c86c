"""Names in real sandboxes: what is answered, by whom, and what is not."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from egressbox import CLIENT, SECRET, box_with, curl, python
from upstreams import host
from woodshed.sandbox.images import Images
from woodshed.sandbox.native.engine import NativeEngine

pytest.importorskip("cryptography", reason="cryptography is missing: pip install 'woodshed[intercept]'")


@pytest.fixture
async def engine(shed_home: Path, images: Images, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NativeEngine]:
    monkeypatch.setenv("COMPANY_TOKEN", SECRET)
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


_ASK = r"""
def question(name, kind):
    labels = b"".join(bytes((len(l),)) + l.encode() for l in name.split("."))
    return struct.pack("!HHHHHH", 9, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)
def ask(data, server="198.18.255.53"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(3)
        s.connect((server, 53))
        s.send(data)
        try:
            return s.recv(4096)
        except TimeoutError:
            return b"none"
"""


async def test_names_are_answered_by_whoever_is_asked(engine: NativeEngine) -> None:
    """Any resolver's address answers, by UDP and TCP: one address for an allowed name, none of another kind, and no
    such name for all others."""
    async with box_with(engine, {"host": "*.a.test"}) as (box, seen):
        got = json.loads(await python(box, _ASK + r"""
servers = ("8.8.8.8", "127.0.0.1", "1.2.3.4")
found = [ask(question("X.a.test", kind), server) for server in servers for kind in (1, 28, 65)]
found.append(ask(question("a.test", 1)))
s = opened("9.9.9.9", 53)
for name in ("y.a.test", "x.a.test"):
    data = question(name, 1)
    s.sendall(struct.pack("!H", len(data)) + data)
    size = struct.unpack("!H", s.recv(2))[0]
    found.append(s.recv(size))
print(json.dumps([data.hex() for data in found]))
"""))
        answers = [bytes.fromhex(data) for data in got]
        codes, counts = [data[3] & 15 for data in answers], [struct.unpack_from("!H", data, 6)[0] for data in answers]
        assert codes == [0] * 9 + [3, 0, 0]
        assert counts == [1, 0, 0] * 3 + [0, 1, 1]
        assert {data[-4:] for data in (answers[0], answers[3], answers[6], answers[11])} == {b"\xc6\x12\0\1"}
        assert answers[10][-4:] == b"\xc6\x12\0\2"
        assert [decision["host"] for decision in seen if decision["verdict"] == "allowed"] == ["x.a.test", "y.a.test"]


async def test_malformed_questions_harm_nobody(engine: NativeEngine) -> None:
    """Cut off, looping, endless, empty, answers: the next question is answered as ever."""
    async with box_with(engine, {"host": "a.test"}) as (box, seen):
        got = await python(box, _ASK + r"""
good = question("a.test", 1)
for bad in (b"\0", good[:14], good[:12] + b"\xc0\x0c\0\1\0\1", good[:2] + b"\x81\x80" + good[4:], b"\xff" * 4000,
            good + bytes(9000)):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(bad, ("1.1.1.1", 53))
s = opened("1.1.1.1", 53)
s.sendall(b"\xff\xff" + bytes(70000))
rest(s)
print(ask(good)[-4:].hex())
""")
        assert got == "c6120001"
        assert len(seen.reasons("refused")) >= 6


async def test_a_flood_of_questions_stops_nobody_else(engine: NativeEngine) -> None:
    """While one sandbox asks as fast as it can, another is served, and what is told of the first has an end."""
    async with host() as api, box_with(engine, {"host": "a.test", "address": api.address}) as (box, _), box_with(
            engine, {"host": "a.test"}) as (flooding, seen):
        await flooding.start(["python3", "-c", CLIENT + _ASK + """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
n = 0
while True:
    n += 1
    s.sendto(question(f"n{n}.evil.test", 1), ("1.1.1.1", 53))
"""])
        for _ in range(3):
            assert "200" in await curl(box, '"http://a.test/"')
        await flooding.kill_all()
        assert len(seen) < 5000
