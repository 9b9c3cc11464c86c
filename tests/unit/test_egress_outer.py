"""The way out through a proxy of this machine's network: what it is asked, what it never is, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from egressbox import SECRET, SPEC, TOKEN, box_with, curl, python
from upstreams import Serve, host
from woodshed.errors import UsageError
from woodshed.model import SandboxPolicy
from woodshed.sandbox.egress import outer, upstream
from woodshed.sandbox.images import Images
from woodshed.sandbox.native.engine import NativeEngine

pytest.importorskip("cryptography", reason="cryptography is missing: pip install 'woodshed[intercept]'")
PASSWORD = "word-of-the-proxy"
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
async def engine(shed_home: Path, images: Images, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NativeEngine]:
    monkeypatch.setenv("COMPANY_TOKEN", SECRET)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


@dataclass(slots=True)
class Outer:
    """A proxy: where it listens, what each connection asked, and the heads with that."""

    address: str = ""
    asked: list[str] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def proxy(leads: Mapping[str, str]) -> AsyncIterator[Outer]:
    """A proxy that knows names by ``leads``, and says 503 to others."""
    made = Outer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        target = head.split(b" ")[1].decode()
        made.asked.append(target)
        made.heads.append(head)
        if target not in leads:
            writer.write(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return
        address, _, port = leads[target].partition(":")
        other, to_other = await asyncio.open_connection(address, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\nX: y\r\n\r\n")
        await asyncio.gather(_pump(reader, to_other), _pump(other, writer))

    async with host(serve=serve) as listening:
        made.address = listening.address
        yield made


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


def _the_proxy_alone(name: str) -> list[str]:
    assert name == "127.0.0.1", f"{name} was asked for here"
    return [name]


async def test_hosts_are_reached_through_the_proxy_by_name(
    engine: NativeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP, TLS that is not read, and a secret under TLS that begins here all pass; the proxy sees names and its login,
    nothing is resolved here, and the rest of the policy holds."""
    async with host(name="api.test", folder=tmp_path) as api, host() as plain, proxy(
            {"api.test:443": api.address, "plain.test:80": plain.address}) as way:
        monkeypatch.setenv("WOODSHED_EGRESS_PROXY", f"http://me:{PASSWORD}@{way.address}")
        monkeypatch.setattr(upstream, "_addresses", _the_proxy_alone)
        kept = {"ca_file": api.ca_file, "upstream_tls": True, "secrets": TOKEN}
        rules: list[dict[str, Any]] = [{"host": "api.test", **kept}, {"host": "plain.test"}, {"host": "*.test"}]
        async with box_with(engine, *rules) as (box, seen):
            assert "200" in await curl(box, '"http://api.test/"', 'Authorization="Bearer $TOKEN"')
            assert f"Bearer {SECRET}".encode() in api.heads[0]
            assert "200" in await curl(box, '"http://plain.test/"')
            assert "421" in await curl(box, '"http://plain.test/"', 'Host="other.test"')
            assert "502" in await curl(box, '"http://unknown.test/"')
            assert way.asked == ["api.test:443", "plain.test:80", "unknown.test:80"]
            login = b"Proxy-Authorization: Basic bWU6d29yZC1vZi10aGUtcHJveHk=\r\n"
            assert all(login in head for head in way.heads)
            assert SECRET.encode() not in b"".join(way.heads)
            assert seen.reasons("failed") == ["the proxy outside answered 503"]
            assert PASSWORD not in json.dumps(list(seen))
            assert any(note.startswith("network: a proxy outside") for note in box.notes)


async def test_tls_that_is_not_read_passes_the_proxy(
    engine: NativeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the sandbox speaks arrives as it is, and a server name that is another's never leaves."""
    async with host(name="api.test", folder=tmp_path) as api, proxy({"api.test:443": api.address}) as way:
        monkeypatch.setenv("WOODSHED_EGRESS_PROXY", "environment")
        monkeypatch.setenv("https_proxy", f"http://{way.address}/")
        async with box_with(engine, {"host": "api.test", "ports": [443]}) as (box, _):
            await box.write("/tmp/ca.pem", Path(api.ca_file).read_bytes())
            got = await python(box, """
context = ssl.create_default_context(cafile="/tmp/ca.pem")
s = context.wrap_socket(opened("api.test", 443), server_hostname="api.test")
s.sendall(b"GET / HTTP/1.1\\r\\nHost: api.test\\r\\nConnection: close\\r\\n\\r\\n")
print(b"well" in rest(s))
try:
    context.wrap_socket(opened("api.test", 443), server_hostname="other.test")
except OSError:
    print("no")
""")
            assert got.split() == ["True", "no"]
            assert way.asked == ["api.test:443"]


async def test_a_host_that_speaks_first_is_heard_through_the_proxy(
    engine: NativeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes with the proxy's own answer is not lost."""
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nSSH-2.0-x\r\n")
        writer.write(await reader.read(100))
        await writer.drain()

    async with host(serve=serve) as way:
        monkeypatch.setenv("WOODSHED_EGRESS_PROXY", way.address)
        async with box_with(engine, {"host": "git.test", "ports": [22], "raw": True}) as (box, _):
            got = await python(box, 's = opened("git.test", 22)\ns.sendall(b"hello")\nprint(rest(s))')
            assert got == repr(b"SSH-2.0-x\r\nhello")


async def test_what_is_no_public_name_is_not_asked_of_the_proxy(
    engine: NativeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wide rule asks no proxy for its own machine, its network's names or an address in the guise of a name; a host
    that is named and private it does, one with an address or in NO_PROXY is gone to from here, and judged."""
    async with host() as plain, proxy({"api.corp:80": plain.address}) as way:
        monkeypatch.setenv("WOODSHED_EGRESS_PROXY", way.address)
        monkeypatch.setenv("NO_PROXY", "other.org, .direct.test")
        monkeypatch.setattr(upstream, "_addresses",
                            lambda name: ["127.0.0.1"] if name == "127.0.0.1" else ["169.254.169.254"])
        rules: list[dict[str, Any]] = [
            {"host": "*"}, {"host": "api.corp", "private": True}, {"host": "own.test", "address": plain.address}]
        async with box_with(engine, *rules) as (box, seen):
            for name in ("a.localhost", "printer", "metadata.google.internal", "x.localhost", "db.corp"):
                assert "403" in await curl(box, f'"http://{name}/"')
            assert seen.reasons("refused") == ["a name of a network's own"] * 5
            for name in ("127.0.0.1.", "2130706433", "0x7f.1"):
                await python(box, f'try: socket.getaddrinfo("{name}", 80)\nexcept OSError: pass')
            assert "200" in await curl(box, '"http://api.corp/"')
            assert "200" in await curl(box, '"http://own.test/"')
            assert "403" in await curl(box, '"http://www.direct.test/"')
            assert seen.reasons("refused")[-1] == "leads to a special address"
            assert way.asked == ["api.corp:80"]


async def _hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def _talks_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 smtp.test\r\n\r\n")
    await writer.drain()


async def _never_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000)
    await writer.drain()


async def _wants_a_login(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 407 Login\r\nProxy-Authenticate: Basic\r\n\r\n")
    await writer.drain()


@pytest.mark.parametrize(("serve", "reason"), [
    (_hangs_up, "did not answer as one"), (_talks_nonsense, "did not answer as one"),
    (_never_ends, "did not answer as one"), (_wants_a_login, "answered 407"),
])  # fmt: skip
async def test_a_proxy_that_does_not_connect_is_said(
    serve: Serve, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence, another protocol, a head without end, a login that is missing: a failure that names the proxy."""
    rule = SandboxPolicy.parse({"network": {"rules": [{"host": "a.test"}]}}).network.rules[0]
    async with host(serve=serve) as way:
        monkeypatch.setenv("WOODSHED_EGRESS_PROXY", f"http://me:{PASSWORD}@{way.address}")
        outside = upstream.Outside()
        await outside.prepare(SandboxPolicy().network)
        with pytest.raises(upstream.Unreached) as caught:
            await outside.connect(rule, "a.test", 443, asyncio.Semaphore(1))
        outside.close()
    assert (caught.value.reason, caught.value.refused) == (f"the proxy outside {reason}", False)


async def test_a_proxy_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """It, and not the host, could not be reached."""
    rule = SandboxPolicy.parse({"network": {"rules": [{"host": "a.test"}]}}).network.rules[0]
    monkeypatch.setenv("WOODSHED_EGRESS_PROXY", "http://127.0.0.1:1")
    outside = upstream.Outside()
    await outside.prepare(SandboxPolicy().network)
    with pytest.raises(upstream.Unreached, match=r"^the proxy outside cannot be reached: Connection refused$"):
        await outside.connect(rule, "a.test", 443, asyncio.Semaphore(1))
    outside.close()


def _chosen(monkeypatch: pytest.MonkeyPatch, said: str, **variables: str) -> outer.Proxies:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in {"WOODSHED_EGRESS_PROXY": said, **variables}.items():
        monkeypatch.setenv(name, value)
    return outer.chosen()


def test_which_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """None unless it is asked for; then HTTP_PROXY in the clear, HTTPS_PROXY else, ALL_PROXY for what is not named."""
    def at(found: outer.Proxies, name: str, port: int, *, tls: bool = False) -> int | None:
        one = found.find(name, port, tls=tls)
        return None if one is None else one.port

    named = {"HTTP_PROXY": "p.test:1", "HTTPS_PROXY": "http://p.test:2", "NO_PROXY": "*.a.org, b.org:80,[::1]"}
    assert not _chosen(monkeypatch, "", **named)
    both = _chosen(monkeypatch, "environment", **named)
    assert [at(both, "x.org", 80), at(both, "x.org", 80, tls=True), at(both, "x.org", 443)] == [1, 2, 2]
    assert [at(both, "y.a.org", 443), at(both, "a.org", 443), at(both, "aa.org", 443)] == [None, None, 2]
    assert [at(both, "b.org", 80), at(both, "b.org", 443)] == [None, 2]
    one = _chosen(monkeypatch, "environment", ALL_PROXY="http://p.test:3", HTTPS_PROXY="http://p.test")
    assert [at(one, "x.org", 80), at(one, "x.org", 443)] == [3, 80]
    assert not _chosen(monkeypatch, "environment", NO_PROXY="*")
    assert at(_chosen(monkeypatch, "p.test:5", NO_PROXY="*", HTTP_PROXY="x"), "x.org", 80) is None


@pytest.mark.parametrize("url", [
    f"https://u:{PASSWORD}@p.test", f"socks5://u:{PASSWORD}@p.test:1", f"http://u:{PASSWORD}@", f"http://u:{PASSWORD}@p:x",
    f"http://u:{PASSWORD}@p.test/path", "http://",
])  # fmt: skip
def test_an_address_that_is_no_proxys_is_an_error_before_anything_runs(
    url: str, shed_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the setting or the variable and the remedy, and shows no password."""
    engine, policy = NativeEngine(shed_home), SandboxPolicy.parse({"network": {"rules": [{"host": "a.test"}]}})
    monkeypatch.setenv("WOODSHED_EGRESS_PROXY", url)
    with pytest.raises(UsageError, match="WOODSHED_EGRESS_PROXY") as caught:
        engine.check(SPEC, policy)
    assert PASSWORD not in str(caught.value)
    monkeypatch.setenv("WOODSHED_EGRESS_PROXY", "environment")
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(UsageError, match="HTTPS_PROXY"):
        engine.check(SPEC, policy)
