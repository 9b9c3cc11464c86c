"""Hosts for tests of egress: small servers on the loopback, plain or under TLS, that remember what they got."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from woodshed.sandbox.egress.ca import Authority

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Host:
    """``heads`` are the requests it got, ``bodies`` what came with them."""

    address: str
    ca_file: str = ""
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0


@asynccontextmanager
async def host(
    *, name: str = "", folder: Path | None = None, body: Callable[[bytes], bytes] | None = None,
    kind: str = "text/plain", serve: Serve | None = None,
) -> AsyncIterator[Host]:
    """A host of HTTP/1.1 that says what ``body`` makes of a request's head; with a ``name``, under TLS as that.

    The authority that vouches for it is a file in ``folder``. ``serve`` instead of HTTP.
    """
    made = Host("")
    context = None
    if name:
        assert folder is not None
        authority = Authority()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        chain = folder / "chain.pem"
        chain.write_bytes(authority.chain(name))
        context.load_cert_chain(chain)
        made.ca_file = str(folder / "ca.pem")
        (folder / "ca.pem").write_bytes(authority.pem)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.connections += 1
        try:
            await (serve(reader, writer) if serve is not None else _http(made, kind, body, reader, writer))
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass  # cut off, also in the middle of a chunk
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=context)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()


async def _http(
    made: Host, kind: str, body: Callable[[bytes], bytes] | None, reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        made.heads.append(head)
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        made.bodies.append(await _body(fields, reader))
        said = body(head) if body is not None else b"well\n"
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(said)}\r\n\r\n".encode() + said)
        await writer.drain()
        if fields.get(b"connection") == b"close":
            return


async def _body(fields: dict[bytes, bytes], reader: asyncio.StreamReader) -> bytes:
    if fields.get(b"transfer-encoding") != b"chunked":
        return await reader.readexactly(int(fields.get(b"content-length", b"0")))
    got = b""
    while size := int(await reader.readline(), 16):
        got += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return got
