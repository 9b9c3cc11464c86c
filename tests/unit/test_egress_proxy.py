"""Egress of real sandboxes: what passes, what does not, and what the sandbox is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from egressbox import CLIENT, SECRET, TOKEN, box_with, curl, python
from upstreams import host
from woodshed.model import SandboxPolicy
from woodshed.sandbox.egress import admission, relay, upstream, visit
from woodshed.sandbox.images import Images
from woodshed.sandbox.native.engine import NativeEngine

pytest.importorskip("cryptography", reason="cryptography is missing: pip install 'woodshed[intercept]'")


@pytest.fixture
async def engine(shed_home: Path, images: Images, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NativeEngine]:
    monkeypatch.setenv("COMPANY_TOKEN", SECRET)
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


# -- what passes -------------------------------------------------------------------------------------------------------


async def test_requests_follow_each_other_on_one_connection(engine: NativeEngine) -> None:
    """Pipelined and one after the other, with bodies by length and in chunks; each is told."""
    async with host(body=lambda head: head.split(b" ")[1]) as api, box_with(
            engine, {"host": "a.test", "address": api.address}) as (box, seen):
        got = await python(box, r"""
s = opened("a.test", 80)
host = b"Host: a.test\r\n"
s.sendall(b"GET /1 HTTP/1.1\r\n" + host + b"\r\nPOST /2 HTTP/1.1\r\n" + host + b"Content-Length: 3\r\n\r\nabc")
time.sleep(0.2)
s.sendall(b"POST /3 HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n3\r\ndef\r\n")
time.sleep(0.2)
s.sendall(b"2\r\ngh\r\n0\r\n\r\nGET /4 HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\nGET /5")
print(rest(s).count(b"200 OK"))
""")
        assert got == "4"
        assert api.bodies == [b"", b"abc", b"defgh", b""]
        assert api.connections == 1
        assert [decision["path"] for decision in seen if "path" in decision] == ["/1", "/2", "/3", "/4"]


async def test_a_later_request_for_another_host_ends_the_connection(engine: NativeEngine) -> None:
    """Every request on a connection is judged; the one that is not in order never arrives."""
    async with host() as api, box_with(engine, {"host": "a.test", "address": api.address}) as (box, seen):
        await python(box, r"""
s = opened("a.test", 80)
s.sendall(b"GET /1 HTTP/1.1\r\nHost: a.test\r\n\r\n")
s.recv(1000)
s.sendall(b"GET /2 HTTP/1.1\r\nHost: b.test\r\n\r\n")
print(rest(s))
""")
        assert [head[:6] for head in api.heads] == [b"GET /1"]
        assert "its Host is b.test, but it was sent to a.test" in seen.reasons("refused")


async def _greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speaks first, and answers when the other side has said all."""
    writer.write(b"hello, ")
    await writer.drain()
    writer.write(b"%d bytes" % len(await reader.read()))
    await writer.drain()


async def test_any_protocol_passes_where_a_rule_says_raw(engine: NativeEngine) -> None:
    """A host that speaks first is heard, an end of one direction is passed on, and the other goes on; three MB."""
    async with host(serve=_greets) as api, box_with(
            engine, {"host": "db.test", "ports": [5432], "address": api.address, "raw": True}) as (box, seen):
        got = await python(box, r"""
s = opened("db.test", 5432)
print(s.recv(7).decode())
s.sendall(b"x" * 3000000)
s.shutdown(socket.SHUT_WR)
print(rest(s).decode())
""")
        assert got == "hello, \n3000000 bytes"
        while seen[-1]["verdict"] != "ended":  # noqa: ASYNC110 (the client is answered before its connection is over)
            await asyncio.sleep(0.01)
        assert {**seen[-1], "seconds": 0} == {
            "policy": "network", "verdict": "ended", "what": "tcp", "host": "db.test", "port": 5432,
            "sent_bytes": 3000000, "received_bytes": 20, "seconds": 0}


async def test_a_fork_has_the_same_hosts_and_other_placeholders(engine: NativeEngine, tmp_path: Path) -> None:
    """The policy goes with a snapshot, and each sandbox is served apart."""
    async with host(name="api.test", folder=tmp_path) as api:
        rule = {"host": "api.test", "address": api.address, "ca_file": api.ca_file, "secrets": TOKEN}
        async with box_with(engine, rule | {"upstream_tls": True}) as (box, _):
            snapshot = await box.snapshot()
            [child] = await engine.fork(snapshot)
            try:
                assert "200" in await curl(box, '"http://api.test/"')
                assert "200" in await curl(child, '"http://api.test/"', 'X="$TOKEN"')
                assert SECRET.encode() in api.heads[1]
                tokens = [(await one.exec("echo $TOKEN")).stdout for one in (box, child)]
                assert tokens[0] != tokens[1]
            finally:
                await child.close()
                await snapshot.release()


# -- what does not -----------------------------------------------------------------------------------------------------


async def test_a_slow_client_is_not_waited_for(engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a request, half a ClientHello, half a handshake, nothing at all: each connection ends, and others go on."""
    monkeypatch.setattr(admission, "HEAD_S", 0.4)
    monkeypatch.setattr(relay, "HEAD_S", 0.4)
    read = {"host": "b.test", "address": "127.0.0.1:1", "intercept": True}
    async with host() as api, box_with(engine, {"host": "a.test", "address": api.address}, read) as (box, seen):
        got = await python(box, r"""
hello = ssl.MemoryBIO()
try:
    ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="b.test").do_handshake()
except ssl.SSLWantReadError:
    pass
slow = []
for name, port, start in (("a.test", 80, b"GET / HT"), ("a.test", 443, b"\x16\3\1\2\0"), ("a.test", 443, b""),
                          ("a.test", 80, b""), ("b.test", 443, hello.read())):
    s = opened(name, port)
    s.sendall(start)
    slow.append(s)
s = opened("a.test", 80)
s.sendall(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
print(b"well" in rest(s), len([rest(s) for s in slow]))
""")
        assert got == "True 5"
        assert len(api.heads) == 1
        assert sorted(seen.reasons("refused")) == [
            "a ClientHello too slow", "a TLS handshake too slow", "a request too slow", "nothing was said",
            "nothing was said"]


async def test_an_idle_connection_ends(engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing moves in either direction both ends are closed."""
    for module in (admission, visit):
        monkeypatch.setattr(module, "IDLE_S", 0.5)
    async with host(serve=_greets) as api, box_with(
            engine, {"host": "a.test", "address": api.address, "raw": True}) as (box, seen):
        assert await python(box, 's = opened("a.test", 80)\nprint(rest(s)[:7].decode())') == "hello,"
        assert any(reason.startswith("nothing moved") for reason in seen.reasons("ended"))


async def test_connections_are_bounded(engine: NativeEngine) -> None:
    """More than the policy admits at once are closed at once, and told."""
    async with host(serve=_greets) as api, box_with(
            engine, {"host": "a.test", "address": api.address, "raw": True}, connections=3) as (box, seen):
        got = await python(box, r"""
def first(s):
    try:
        return s.recv(7)
    except OSError:
        return b""
many = [opened("a.test", 80) for _ in range(5)]
print(sum(1 for s in many if first(s)))
""")
        assert got == "3"
        assert seen.reasons("refused") == ["more than 3 connections"] * 2


@pytest.mark.parametrize(("address", "reason"), [
    ("169.254.169.254", "a special address"), ("10.1.2.3", "a private address"), ("127.0.0.1", "a special address"),
    ("100.100.100.200", "a metadata service"), ("::ffff:169.254.169.254", "a special address"),
])  # fmt: skip
async def test_a_name_that_leads_where_nothing_may_go_is_refused(
    engine: NativeEngine, monkeypatch: pytest.MonkeyPatch, address: str, reason: str
) -> None:
    """An allowed name that resolves to a special or private address is refused."""
    asked: list[str] = []

    def resolve(name: str) -> list[str]:
        asked.append(name)
        return [address]

    monkeypatch.setattr(upstream, "_addresses", resolve)
    async with box_with(engine, {"host": "a.test"}) as (box, seen):
        assert "403" in await curl(box, '"http://a.test/"')
        assert seen.reasons("refused") == [f"leads to {reason}"]
        assert asked == ["a.test."], "absolute, and asked once"


async def test_what_was_judged_is_what_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that changes its address between two questions is asked once: the connection goes to what was judged."""
    answers = [["127.0.0.1"], ["169.254.169.254"]]

    async def lookup(name: str) -> list[str]:
        return answers.pop(0)

    monkeypatch.setattr(upstream, "why_refused", lambda address, private: None if address == "127.0.0.1" else "bad")
    monkeypatch.setattr(upstream, "is_own", lambda address, port: False)
    async with host() as api:
        port = int(api.address.rpartition(":")[2])
        outside = upstream.Outside(lookup)
        rule = SandboxPolicy.parse({"network": {"rules": [{"host": "a.test"}]}}).network.rules[0]
        for _ in range(3):
            wire = await outside.connect(rule, "a.test", port, asyncio.Semaphore(1))
            wire.close()
        outside.close()
        assert len(answers) == 1


async def test_names_that_never_answer_leave_room_for_others() -> None:
    """One sandbox waits for few names at a time; another's name is asked for meanwhile, and a known one at once."""
    never, asked = asyncio.Event(), list[str]()

    async def lookup(name: str) -> list[str]:
        asked.append(name)
        if name.startswith("slow"):
            await never.wait()
        return ["10.0.0.1"]

    outside, policy = upstream.Outside(lookup), SandboxPolicy.parse({"network": {"rules": [{"host": "*"}]}})
    rule, one, other = policy.network.rules[0], asyncio.Semaphore(2), asyncio.Semaphore(2)
    slow = [asyncio.ensure_future(outside.connect(rule, f"slow{number}.test", 80, one)) for number in range(5)]
    await asyncio.sleep(0.05)
    assert asked == ["slow0.test.", "slow1.test."]
    with pytest.raises(upstream.Unreached, match="a private address"):
        await outside.connect(rule, "other.test", 80, other)
    with pytest.raises(upstream.Unreached, match="a private address"):
        await outside.connect(rule, "other.test", 80, one)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    outside.close()


async def test_a_host_that_is_not_there_is_said(engine: NativeEngine) -> None:
    """A refused connection is a 502 that names the host, and a decision."""
    async with box_with(engine, {"host": "a.test", "address": "127.0.0.1:1"}) as (box, seen):
        assert "(502, b'Refused by the network policy of this sandbox: a.test: Connection refused" in await curl(
            box, '"http://a.test/"')
        assert seen.reasons("failed") == ["Connection refused"]
        assert "0, " in await curl(box, '"https://a.test/"')




async def test_noise_leaves_nothing_behind(engine: NativeEngine, tmp_path: Path) -> None:
    """Hundreds of connections of nonsense, cut off anywhere: no task, no error in the loop, and the next is served."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    async with host() as api, host(name="tls.test", folder=tmp_path) as sealed:
        rules: list[dict[str, Any]] = [
            {"host": "a.test", "address": api.address},
            {"host": "tls.test", "address": sealed.address, "ca_file": sealed.ca_file, "intercept": True}]
        async with box_with(engine, *rules, connections=16) as (box, _):
            await python(box, r"""
import os, random
random.seed(7)
chunks = b"Host: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n"
starts = [b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", b"POST / HTTP/1.1\r\n" + chunks, b"\x16\3\1\0\5hello", b"",
          b"\x16\3\1\2\0\1\0\1\xfc\3\3", b"\x15\3\3\0\2\2P"]
def client_hello(name):
    out = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()
starts += [client_hello("a.test"), client_hello("tls.test"), client_hello("b.test")]
for number in range(300):
    try:
        with opened(random.choice(["a.test", "tls.test"]), random.choice([80, 443])) as s:
            said = random.choice(starts) + os.urandom(random.choice([0, 1, 100, 5000]))
            s.sendall(said[:random.randrange(len(said) + 1)])
            if number % 3 == 0:
                s.settimeout(0.02)
                s.recv(100)
            elif number % 7 == 0:
                s.shutdown(socket.SHUT_WR)
    except OSError:
        pass
print(rest(opened("9.9.9.9", 80)))
""")
            assert "200" in await curl(box, '"http://a.test/"')
            assert "200" in await curl(box, '"https://tls.test/"')
            assert box.network is not None
            for _ in range(200):
                if not box.network.egress._tasks:
                    break
                await asyncio.sleep(0.1)
            assert not box.network.egress._tasks
    assert complaints == []




# -- its end -----------------------------------------------------------------------------------------------------------


async def test_connections_end_with_their_sandbox(engine: NativeEngine) -> None:
    """A sandbox that is closed while bytes flow leaves no connection behind, here or at the host; each one's bytes are
    told, also where nothing was sent."""
    ended = asyncio.Event()

    async def pours(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        finally:
            ended.set()

    async with host(serve=pours) as api:
        async with box_with(engine, {"host": "a.test", "address": api.address, "raw": True}) as (box, seen):
            await box.start(["python3", "-c", CLIENT + 's = opened("a.test", 80)\nrest(s)'])
            reading = await box.start(["python3", "-c", CLIENT + 's = opened("a.test", 80)\ntime.sleep(600)'])
            assert reading.id
            for _ in range(300):
                if seen.reasons("allowed").count("") >= 3:  # the name, and each connection
                    break
                await asyncio.sleep(0.1)
            assert box.network is not None
            assert len(box.network.egress._tasks) == 2
        await asyncio.wait_for(ended.wait(), 20)
        told = [decision for decision in seen if decision["verdict"] == "ended"]
        assert len(told) == 2
        assert {decision["reason"] for decision in told} <= {"the sandbox ended", "ConnectionResetError"}
        assert all(decision["sent_bytes"] == 0 < decision["received_bytes"] for decision in told)
        assert not box.network.egress._tasks
