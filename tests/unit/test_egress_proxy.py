"""Egress of real sandboxes: what passes, what does not, and what the sandbox is told."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from upstreams import host
from woodshed.errors import UsageError
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.conformance import MemoryBlobs
from woodshed.sandbox.egress import admission, relay, upstream, visit
from woodshed.sandbox.images import Images
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.egress import CA_FILE
from woodshed.sandbox.native.engine import NativeEngine

pytest.importorskip("cryptography", reason="cryptography is missing: pip install 'woodshed[intercept]'")
SPEC = EnvironmentSpec()
SECRET = "a-secret-of-the-company"
TOKEN = [{"name": "TOKEN", "env": "COMPANY_TOKEN"}]
CLIENT = """
import json, socket, ssl, struct, sys, time
def opened(host, port):
    s = socket.create_connection((host, port), timeout=20)
    return s
def rest(s):
    got = b""
    try:
        while piece := s.recv(65536):
            got += piece
    except OSError as error:
        got += type(error).__name__.encode()
    return got
"""


@pytest.fixture(scope="module")
def images(shed_home: Path) -> Images:
    return Images(shed_home)


@pytest.fixture
async def engine(shed_home: Path, images: Images, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NativeEngine]:
    monkeypatch.setenv("COMPANY_TOKEN", SECRET)
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


class Seen(list[Mapping[str, Any]]):
    """What was told of one sandbox."""

    def reasons(self, verdict: str) -> list[str]:
        return [str(decision.get("reason", "")) for decision in self if decision["verdict"] == verdict]


@asynccontextmanager
async def box_with(
    engine: NativeEngine, *rules: Mapping[str, Any], **more: Any
) -> AsyncIterator[tuple[NativeSandbox, Seen]]:
    box = await engine.create(SPEC, SandboxPolicy.parse({"network": {"rules": list(rules), **more}}))
    seen = Seen()
    box.on_decision(seen.append)
    try:
        yield box, seen
    finally:
        await box.close()
    assert SECRET not in json.dumps(list(seen))


async def python(box: NativeSandbox, script: str) -> str:
    result = await box.exec(["python3", "-c", CLIENT + script], timeout_s=60)
    assert result.exit_code == 0, result
    return result.stdout.decode().strip()


async def curl(box: NativeSandbox, *arguments: str) -> str:
    """With python3: not every machine has curl."""
    script = """
import urllib.request, urllib.error, os
def ask(url, method="GET", data=None, **fields):
    fields = {k: os.path.expandvars(v) for k, v in fields.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, fields, method=method), timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()
print(ask(ARGS))
""".replace("ARGS", ", ".join(arguments))
    return await python(box, script)


# -- secrets, methods, interception ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "url"), [("upstream_tls", "http://api.test/x?q"), ("intercept", "https://api.test/x?q")])
async def test_a_secret_reaches_its_host_and_never_the_sandbox(
    engine: NativeEngine, tmp_path: Path, way: str, url: str
) -> None:
    """The host gets the secret, in a header or in Basic credentials; the sandbox has a placeholder, and stars where the
    answer repeats what was sent."""
    async with host(name="api.test", folder=tmp_path, body=lambda head: b"sent: " + head) as api:
        rule = {"host": "api.test", "address": api.address, "ca_file": api.ca_file, way: True, "secrets": TOKEN}
        async with box_with(engine, rule) as (box, seen):
            answer = await curl(box, f'"{url}"', 'Authorization="Bearer $TOKEN"')
            assert f"Bearer {SECRET}".encode() in api.heads[0]
            assert "Bearer " + "*" * len(SECRET) in answer
            assert SECRET not in answer
            script = 'import base64, os; print(base64.b64encode(b"me:" + os.environb[b"TOKEN"]).decode())'
            basic = await python(box, script)
            answer = await curl(box, f'"{url}"', f'Authorization="Basic {basic}"')
            assert b"Basic bWU6YS1zZWNyZXQtb2YtdGhlLWNvbXBhbnk=" in api.heads[1]
            assert "bWU6YS1zZWNyZXQ" not in answer
            held = (await box.exec("env; cat /proc/self/environ")).stdout.decode()
            assert SECRET not in held
            assert "TOKEN=woodshed-secret-" in held
            uses = [decision for decision in seen if decision.get("secrets") == ["TOKEN"]]
            assert [use["path"] for use in uses] == ["/x", "/x"]


async def test_a_secret_is_for_its_host_alone(engine: NativeEngine, tmp_path: Path) -> None:
    """Another host gets the placeholder as it is; and in the clear nothing is sent to the secret's own host."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with host(name="a.test", folder=tmp_path / "a") as one, host(name="b.test", folder=tmp_path / "b") as two:
        kept = {"intercept": True, "secrets": TOKEN}
        rules = [{"host": "a.test", "address": one.address, "ca_file": one.ca_file, **kept},
                 {"host": "b.test", "address": two.address, "ca_file": two.ca_file, "upstream_tls": True}]
        async with box_with(engine, *rules) as (box, seen):
            await curl(box, '"http://b.test/"', 'Authorization="Bearer $TOKEN"')
            assert b"Bearer woodshed-secret-" in two.heads[0]
            assert "421" in await curl(box, '"http://b.test/"', 'Host="a.test"', 'X="$TOKEN"')
            assert "403" in await curl(box, '"http://a.test/"', 'Authorization="Bearer $TOKEN"')
            assert any("in the clear" in reason for reason in seen.reasons("refused"))
            assert one.heads == []


async def test_only_methods_of_the_rule_pass(engine: NativeEngine, tmp_path: Path) -> None:
    """A read-only host takes no POST, nor a header by which a GET is taken for one, also where TLS is intercepted."""
    async with host(name="api.test", folder=tmp_path) as api:
        rule = {"host": "api.test", "address": api.address, "ca_file": api.ca_file, "read_only": True}
        async with box_with(engine, rule | {"upstream_tls": True, "intercept": True}) as (box, seen):
            for scheme in ("http", "https"):
                assert "200" in await curl(box, f'"{scheme}://api.test/"')
                assert "403" in await curl(box, f'"{scheme}://api.test/"', '"POST"', 'b"x" * 200000')
                override = '**{"X-HTTP-Method-Override": "DELETE"}'
                assert "403" in await curl(box, f'"{scheme}://api.test/"', override)
            assert [head[:4] for head in api.heads] == [b"GET "] * 2
            assert seen.reasons("refused").count("the method POST; allowed here: GET, HEAD, OPTIONS") == 2


async def test_the_authority_of_a_sandbox_is_its_own(engine: NativeEngine, tmp_path: Path) -> None:
    """The file that programs are told of holds one more authority than the machine's, differs from box to box, is in no
    capture, and is not there where nothing is intercepted."""
    rules = ({"host": "a.test", "address": "127.0.0.1:1", "intercept": True},)
    found = []
    for _ in range(2):
        async with box_with(engine, *rules) as (box, _):
            found.append(await box.read(CA_FILE))
            assert (await box.exec("echo $SSL_CERT_FILE $NODE_EXTRA_CA_CERTS")).stdout.decode().split() == [CA_FILE] * 2
            await box.kill_all()
            assert (await box.changes(MemoryBlobs())).changes == ()
    assert found[0] != found[1]
    async with box_with(engine, {"host": "a.test"}) as (box, _):
        assert (await box.exec(["test", "-e", CA_FILE])).exit_code == 1
        assert (await box.exec("echo $SSL_CERT_FILE")).stdout == b"\n"


async def test_a_host_nobody_vouches_for_is_not_spoken_to(engine: NativeEngine, tmp_path: Path) -> None:
    """Where TLS begins outside its certificate is checked there, name and authority; nothing is sent to another."""
    async with host(name="other.test", folder=tmp_path) as api:
        rules = [{"host": "unknown.test", "address": api.address, "upstream_tls": True},
                 {"host": "api.test", "address": api.address, "upstream_tls": True, "ca_file": api.ca_file}]
        async with box_with(engine, *rules) as (box, seen):
            assert "502" in await curl(box, '"http://unknown.test/"')
            assert "502" in await curl(box, '"http://api.test/"')
            assert all(reason.startswith("its certificate: ") for reason in seen.reasons("failed"))
            assert api.heads == []


async def test_a_missing_authority_is_said(shed_home: Path, images: Images) -> None:
    """A file of trusted certificates that is not there is a usage error when the sandbox is to be made."""
    engine = NativeEngine(shed_home, images=images)
    rule = {"host": "a.test", "upstream_tls": True, "ca_file": "/no/such/ca.pem"}
    with pytest.raises(UsageError, match=r"/no/such/ca\.pem"):
        await engine.create(SPEC, SandboxPolicy.parse({"network": {"rules": [rule]}}))
    await engine.close()


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
    """Half a request, half a ClientHello, nothing at all: each connection ends, and others go on meanwhile."""
    monkeypatch.setattr(admission, "HEAD_S", 0.4)
    monkeypatch.setattr(relay, "HEAD_S", 0.4)
    async with host() as api, box_with(engine, {"host": "a.test", "address": api.address}) as (box, seen):
        got = await python(box, r"""
slow = []
for port, start in ((80, b"GET / HT"), (443, b"\x16\3\1\2\0"), (443, b""), (80, b"")):
    s = opened("a.test", port)
    s.sendall(start)
    slow.append(s)
s = opened("a.test", 80)
s.sendall(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
print(b"well" in rest(s), len([rest(s) for s in slow]))
""")
        assert got == "True 4"
        assert len(api.heads) == 1
        assert sorted(seen.reasons("refused")) == [
            "a ClientHello too slow", "a request too slow", "nothing was said", "nothing was said"]


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
many = [opened("a.test", 80) for _ in range(5)]
print(sum(1 for s in many if s.recv(7)))
""".replace("s.recv(7)", "first(s)").replace("many =", """
def first(s):
    try:
        return s.recv(7)
    except OSError:
        return b""
many ="""))
        assert got == "3"
        assert seen.reasons("refused") == ["more than 3 connections"] * 2


@pytest.mark.parametrize(("address", "reason"), [
    ("169.254.169.254", "a special address"), ("10.1.2.3", "a private address"), ("127.0.0.1", "a special address"),
    ("100.100.100.200", "a metadata service"), ("::ffff:169.254.169.254", "a special address"),
])  # fmt: skip
async def test_a_name_that_leads_where_nothing_may_go_is_refused(
    engine: NativeEngine, monkeypatch: pytest.MonkeyPatch, address: str, reason: str
) -> None:
    """An allowed name that resolves to a special or private address is refused, whatever else it resolves to."""
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
            wire = await outside.connect(rule, "a.test", port)
            wire.close()
        outside.close()
        assert len(answers) == 1


async def test_a_host_that_is_not_there_is_said(engine: NativeEngine) -> None:
    """A refused connection is a 502 that names the host, and a decision."""
    async with box_with(engine, {"host": "a.test", "address": "127.0.0.1:1"}) as (box, seen):
        assert "(502, b'Refused by the network policy of this sandbox: a.test: Connection refused" in await curl(
            box, '"http://a.test/"')
        assert seen.reasons("failed") == ["Connection refused"]
        assert "0, " in await curl(box, '"https://a.test/"')


# -- names -------------------------------------------------------------------------------------------------------------

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


def test_what_a_policy_does_not_hold_is_told(shed_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every host, and any protocol, are said to be so before anything runs; a secret that is missing is an error."""
    engine = NativeEngine(shed_home)
    rules = [{"host": "*"}, {"host": "db.test", "raw": True},
             {"host": "a.test", "upstream_tls": True, "secrets": TOKEN}]
    policy = SandboxPolicy.parse({"network": {"rules": rules}})
    monkeypatch.setenv("COMPANY_TOKEN", SECRET)
    assert [note.split(":")[1].split()[0] for note in engine.check(SPEC, policy)] == ["'*'", "db.test"]
    monkeypatch.delenv("COMPANY_TOKEN")
    with pytest.raises(UsageError, match="COMPANY_TOKEN"):
        engine.check(SPEC, policy)


# -- its end -----------------------------------------------------------------------------------------------------------


async def test_connections_end_with_their_sandbox(engine: NativeEngine) -> None:
    """A sandbox that is closed while bytes flow leaves no connection behind, here or at the host."""
    ended = asyncio.Event()

    async def pours(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        finally:
            ended.set()

    async with host(serve=pours) as api:
        async with box_with(engine, {"host": "a.test", "address": api.address, "raw": True}) as (box, _):
            await box.start(["python3", "-c", CLIENT + 's = opened("a.test", 80)\nrest(s)'])
            reading = await box.start(["python3", "-c", CLIENT + 's = opened("a.test", 80)\ntime.sleep(600)'])
            await asyncio.sleep(0.3)
            assert reading.id
            assert box.network is not None
            assert len(box.network.egress._tasks) == 2
        await asyncio.wait_for(ended.wait(), 20)
        assert not box.network.egress._tasks
