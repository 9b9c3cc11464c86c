"""Ports of a sandbox that lead to this process: reached from inside, by nobody else, and gone with the sandbox.

The image needs ``python3``.
"""

from __future__ import annotations

import asyncio
import socket

from woodshed.interfaces import Sandbox, SandboxEngine
from woodshed.sandbox.conformance.kit import Check, needs, opened

# Says something at a port; prints what came, or the kind of failure.
_SAY = """
import socket, sys
try:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10) as s:
        s.sendall(b"hello")
        s.shutdown(socket.SHUT_WR)
        print(b"".join(iter(lambda: s.recv(65536), b"")).decode(), end="")
except OSError as error:
    print("no:", type(error).__name__)
"""


async def _say(sandbox: Sandbox, port: int) -> str:
    result = await sandbox.exec(["python3", "-c", _SAY, str(port)], timeout_s=60)
    return result.stdout.decode()


async def _echo(descriptor: int) -> None:
    """Answer with what was said."""
    with socket.socket(fileno=descriptor) as end:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(end, 65536):
            await loop.sock_sendall(end, b"heard " + data)


@needs("listen")
async def a_port_leads_here(engine: SandboxEngine) -> None:
    """What connects to it inside is served by this process, again and again, until it closes."""
    async with opened(engine) as sandbox:
        listener = await sandbox.listen(_echo)
        assert listener.port > 0
        assert [await _say(sandbox, listener.port) for _ in range(3)] == ["heard hello"] * 3
        second = await sandbox.listen(_echo)
        assert second.port != listener.port
        await listener.close()
        await listener.close()
        assert (await _say(sandbox, listener.port)).startswith("no: ")
        assert await _say(sandbox, second.port) == "heard hello"


@needs("listen")
async def nobody_else_reaches_a_port(engine: SandboxEngine) -> None:
    """Neither another sandbox nor this machine has anything at its number; a sandbox's own still answers."""
    async with opened(engine) as one, opened(engine) as other:
        listener = await one.listen(_echo)
        assert (await _say(other, listener.port)).startswith("no: ")
        with socket.socket() as outside:
            assert outside.connect_ex(("127.0.0.1", listener.port)) != 0
        assert await _say(one, listener.port) == "heard hello"


@needs("listen")
async def a_port_opens_nothing_else(engine: SandboxEngine) -> None:
    """This machine's loopback stays out of reach."""
    async with opened(engine) as sandbox:
        listener = await sandbox.listen(_echo)
        host = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with host:
            assert (await _say(sandbox, host.sockets[0].getsockname()[1])).startswith("no: ")
        assert await _say(sandbox, listener.port) == "heard hello"


@needs("listen")
async def a_port_goes_with_its_sandbox(engine: SandboxEngine) -> None:
    """Whoever serves one is cut off when the sandbox closes."""
    begun, cut = asyncio.Event(), asyncio.Event()

    async def hold(descriptor: int) -> None:
        with socket.socket(fileno=descriptor):
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cut.set()

    async with opened(engine) as sandbox:
        listener = await sandbox.listen(hold)
        await sandbox.start(["python3", "-c", _SAY, str(listener.port)])
        await begun.wait()
        assert not cut.is_set()
    assert cut.is_set()
    await listener.close()


CHECKS: tuple[Check, ...] = (a_port_leads_here, nobody_else_reaches_a_port, a_port_opens_nothing_else,
                             a_port_goes_with_its_sandbox)
