"""A sandbox that floods its own port holds so many connections of this process and no more."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.native import ports
from woodshed.sandbox.native.engine import NativeEngine

FLOOD = """
import socket, sys, time
held = []
for _ in range(20):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
print("flooded", flush=True)
time.sleep(600)
"""


@pytest.fixture
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    engine = NativeEngine(shed_home)
    yield engine
    await engine.close()


@pytest.mark.parametrize("defended", [True, False])
async def test_a_flood_takes_its_own_seats_alone(
    defended: bool, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is beyond them waits in the kernel, and others are served; without the bound all would get in."""
    monkeypatch.setattr(ports, "MOST", 4 if defended else 1_000)
    flooder, other = [await engine.create(EnvironmentSpec(), SandboxPolicy()) for _ in range(2)]
    inside, most, flooded = 0, 0, asyncio.Event()

    async def hold(descriptor: int) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        with socket.socket(fileno=descriptor):
            await asyncio.Event().wait()

    async def hang_up(descriptor: int) -> None:
        socket.socket(fileno=descriptor).close()

    port = await flooder.listen(hold)
    await flooder.start(["python3", "-c", FLOOD, str(port.port)], stream=lambda *_: flooded.set())
    await flooded.wait()
    free = await other.listen(hang_up)
    asked = f"import socket; print(socket.create_connection(('127.0.0.1', {free.port})).recv(1))"
    assert (await other.exec(["python3", "-c", asked])).stdout == b"b''\n"
    while most < (4 if defended else 20):  # noqa: ASYNC110 (a fact that nobody tells us of)
        await asyncio.sleep(0.01)
    assert most == (4 if defended else 20)
