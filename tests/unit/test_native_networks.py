"""Network namespaces are used again only where their box left nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.native.engine import NativeEngine

SPEC = EnvironmentSpec()
USES = {
    "packets on the loopback": """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b"x", ("127.0.0.1", 9))
""",
    "a closed connection that still holds its port": """
import socket
s = socket.create_server(("127.0.0.1", 8000))
c = socket.create_connection(("127.0.0.1", 8000))
a, _ = s.accept()
a.close(); c.close()
""",
    "a listening socket kept in flight, which no process holds": """
import array, socket
s = socket.create_server(("127.0.0.1", 8000))
a, b = socket.socketpair()
a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [a.fileno(), b.fileno(), s.fileno()]))])
""",
}


@pytest.fixture
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    """Sandboxes of a home of their own."""
    made = NativeEngine(shed_home)
    yield made
    await made.close()


async def used(engine: NativeEngine, program: str | None = None) -> str:
    """The network namespace of a fresh sandbox in which ``program`` ran, and which is gone again."""
    sandbox = await engine.create(SPEC, SandboxPolicy())
    try:
        if program is not None:
            ran = await sandbox.exec(["python3", "-c", program])
            assert ran.exit_code == 0, ran
        return (await sandbox.exec(["readlink", "/proc/self/ns/net"])).stdout.decode()
    finally:
        await sandbox.close()


async def test_an_untouched_namespace_serves_the_next_box(engine: NativeEngine) -> None:
    """Sandboxes that use no network, one after the other, share one namespace."""
    assert len({await used(engine) for _ in range(4)}) == 1


async def test_living_boxes_never_share_a_namespace(engine: NativeEngine) -> None:
    """Each of twenty live sandboxes has a namespace of its own, more than are followed."""
    boxes = [await engine.create(SPEC, SandboxPolicy()) for _ in range(20)]
    found = {(await box.exec(["readlink", "/proc/self/ns/net"])).stdout for box in boxes}
    assert len(found) == len(boxes)
    for box in boxes:
        await box.close()


@pytest.mark.parametrize("use", USES)
async def test_a_used_namespace_never_comes_back(engine: NativeEngine, use: str) -> None:
    """A namespace that shows a trace of its box is left, and the port that box held is free in the next one."""
    before = await used(engine)
    assert await used(engine, USES[use]) == before, "the untouched one was to be used again"
    after = await engine.create(SPEC, SandboxPolicy())
    try:
        # The inode number of a namespace may come again; what it holds may not.
        look = "cat /proc/net/sockstat /proc/net/dev | grep -E 'sockets|TCP|lo:'"
        seen = (await after.exec(look)).stdout.decode().split()
        assert seen[:3] == ["sockets:", "used", "0"]
        assert seen[seen.index("tw") + 1] == "0"
        assert seen[seen.index("lo:") + 2] == "0"
        bound = await after.exec(["python3", "-c", "import socket; socket.socket().bind(('127.0.0.1', 8000))"])
        assert bound.exit_code == 0, bound
    finally:
        await after.close()


async def test_every_port_is_the_boxs_own(engine: NativeEngine) -> None:
    """A command listens on port 80 and is reached there."""
    serve = ("import socket; s = socket.create_server(('127.0.0.1', 80)); "
             "socket.create_connection(('127.0.0.1', 80)); print('served')")
    sandbox = await engine.create(SPEC, SandboxPolicy())
    try:
        assert (await sandbox.exec(["python3", "-c", serve])).stdout == b"served\n"
    finally:
        await sandbox.close()
