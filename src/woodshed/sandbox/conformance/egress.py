"""Network by policy: what rules name is reached through the engine, nothing else is, and every decision is told.

The image needs ``python3``. Hosts are servers of the check's own, on this machine's loopback, by a rule's ``address``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from woodshed.errors import UsageError
from woodshed.interfaces import Governed, Sandbox, SandboxEngine
from woodshed.model import SandboxPolicy
from woodshed.sandbox.conformance.kit import SPEC, Check, needs, raises

_HOST = "allowed.test"
# Tries each address in turn; prints what it got, or the kind of failure.
_TRY = """
import json, socket, sys
def tried(host, port, say, kind=socket.SOCK_STREAM):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(10)
            s.connect((host, port))
            s.sendall(say.encode())
            got = b""
            while piece := s.recv(65536):
                got += piece
            return got.decode("latin-1")
    except OSError as error:
        return "no: " + type(error).__name__
print(json.dumps([tried(*case) for case in json.loads(sys.argv[1])]))
"""
_STREAM, _DATAGRAM = 1, 2


@asynccontextmanager
async def _host(body: bytes = b"well\n") -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers each connection's first request with ``body``: its address, and what it was sent."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heard.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", heard
    finally:
        server.close()


@asynccontextmanager
async def _with(engine: SandboxEngine, *rules: Mapping[str, Any]) -> AsyncIterator[Sandbox]:
    sandbox = await engine.create(SPEC, SandboxPolicy.parse({"network": {"rules": list(rules)}}))
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def _try(sandbox: Sandbox, *cases: tuple[str, int, str] | tuple[str, int, str, int]) -> list[str]:
    result = await sandbox.exec(["python3", "-c", _TRY, json.dumps(cases)], timeout_s=60)
    assert result.exit_code == 0, result
    got: list[str] = json.loads(result.stdout)
    return got


def _get(host: str = _HOST, path: str = "/") -> str:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"


@needs("network")
async def an_allowed_host_is_reached(engine: SandboxEngine) -> None:
    """A host of a rule has a name inside and answers there; another sandbox, without rules, does not know it."""
    async with _host() as (address, heard), _with(engine, {"host": _HOST, "address": address}) as sandbox:
        (got,) = await _try(sandbox, (_HOST, 80, _get(path="/here")))
        assert got.endswith("\r\n\r\nwell\n"), got
        assert heard[0].startswith(b"GET /here HTTP/1.1\r\nHost: allowed.test\r\n"), heard
        bare = await engine.create(SPEC, SandboxPolicy())
        try:
            assert await _try(bare, (_HOST, 80, _get())) == ["no: gaierror"]
        finally:
            await bare.close()


@needs("network")
async def nothing_else_is_reached(engine: SandboxEngine) -> None:
    """Other names, other ports, addresses, this machine's loopback, IPv6, UDP and QUIC: refused, none left waiting."""
    async with _host() as (address, heard), _with(engine, {"host": _HOST, "address": address}) as sandbox:
        port = int(address.rpartition(":")[2])
        got = await _try(
            sandbox, ("other.test", 80, _get("other.test")), ("sub." + _HOST, 80, _get()), (_HOST, 8080, _get()),
            ("1.1.1.1", 80, _get()), ("169.254.169.254", 80, _get()), ("127.0.0.1", port, _get()),
            ("127.0.0.1", 80, _get()), ("2001:4860:4860::8888", 80, _get()), ("::ffff:1.1.1.1", 80, _get()),
            ("8.8.8.8", 443, "x" * 1200, _DATAGRAM), ("8.8.8.8", 123, "x", _DATAGRAM))
        assert all(answer == "" or answer.startswith("no: ") for answer in got), got
        assert "no: TimeoutError" not in got, got
        assert heard == []


@needs("network")
async def what_is_said_must_be_for_the_host(engine: SandboxEngine) -> None:
    """Another Host, a proxy's target, CONNECT, or what is no HTTP or TLS does not pass."""
    async with _host() as (address, heard), _with(engine, {"host": _HOST, "address": address}) as sandbox:
        got = await _try(
            sandbox, (_HOST, 80, _get("other.test")), (_HOST, 80, _get(path="http://other.test/")),
            (_HOST, 80, "CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n"),
            (_HOST, 80, "SSH-2.0-x\r\n"))
        assert all(answer[:10] == "HTTP/1.1 4" or answer.startswith("no: Connection") for answer in got), got
        assert heard == []


@needs("network")
async def bytes_are_bounded(engine: SandboxEngine) -> None:
    """What a rule bounds is cut off there, over all connections together."""
    rule = {"host": _HOST, "max_received_bytes": 200_000}
    async with _host(b"x" * 150_000) as (address, _), _with(engine, {**rule, "address": address}) as sandbox:
        first, second = await _try(sandbox, (_HOST, 80, _get()), (_HOST, 80, _get()))
        assert first.endswith("x" * 150_000)
        assert second.count("x") < 60_000


@needs("network")
async def every_decision_is_told(engine: SandboxEngine) -> None:
    """Whoever listens hears of what was allowed and refused, with host and reason, also of what was before."""
    async with _host() as (address, _), _with(engine, {"host": _HOST, "address": address}) as sandbox:
        assert isinstance(sandbox, Governed)
        await _try(sandbox, (_HOST, 80, _get()), ("other.test", 80, ""))
        told: list[Mapping[str, Any]] = []
        sandbox.on_decision(told.append)
        await _try(sandbox, ("1.1.1.1", 80, ""))
        found = {(decision["verdict"], decision["what"], decision["host"]) for decision in told}
        assert {("allowed", "http", _HOST), ("refused", "dns", "other.test"), ("refused", "tcp", "1.1.1.1")} <= found


@needs("network")
async def a_secret_that_is_missing_makes_no_sandbox(engine: SandboxEngine) -> None:
    """A rule whose secret is not there is a usage error that names where it was looked for."""
    rule = {"host": _HOST, "upstream_tls": True, "secrets": [{"name": "TOKEN", "env": "WOODSHED_NO_SUCH_SECRET"}]}
    error = await raises(UsageError, engine.create(SPEC, SandboxPolicy.parse({"network": {"rules": [rule]}})))
    assert "WOODSHED_NO_SUCH_SECRET" in str(error)


CHECKS: tuple[Check, ...] = (
    an_allowed_host_is_reached, nothing_else_is_reached, what_is_said_must_be_for_the_host, bytes_are_bounded,
    every_decision_is_told, a_secret_that_is_missing_makes_no_sandbox,
)
