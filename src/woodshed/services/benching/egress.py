"""Network by policy under measurement: what it adds to a sandbox and to a request, and what it weighs for many."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from woodshed.errors import EnvironmentFault, UsageError
from woodshed.interfaces import Sandbox, SandboxEngine
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.services.benching.rounds import quantile
from woodshed.services.benching.subject import BURST

_HOST = "origin.test"
_FDS_EACH, _FDS_SPARE = 12, 256
_AT_A_TIME, _LOOK_S = 8, 0.02
_WARMING = 3
_PATIENCE_S = 120
# Answers each request with two pieces; the second once "together" requests are there: all are under way at once.
_ORIGIN = """
import asyncio, sys
together, size = int(sys.argv[1]), int(sys.argv[2])
here, all_here = 0, asyncio.Event()
async def serve(reader, writer):
    global here
    try:
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        many = head.startswith(b"GET /many")
        body = b"x" * (size if many else 1000)
        head = b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n" % (2 * len(body))
        writer.write(head + body)
        await writer.drain()
        here += many
        if here >= together:
            all_here.set()
        if many:
            await all_here.wait()
        writer.write(body)
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
# Connects, asks and reads to the end, so many times; prints milliseconds.
_CLIENT = """
import json, socket, sys, time
host, port, path, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
taken = []
for _ in range(count):
    began, got = time.perf_counter(), 0
    with socket.create_connection((host, port)) as s:
        s.sendall(f"GET {path} HTTP/1.1\\r\\nHost: origin.test\\r\\nConnection: close\\r\\n\\r\\n".encode())
        while piece := s.recv(65536):
            got += len(piece)
    taken.append(1000 * (time.perf_counter() - began))
print(json.dumps([taken, got]))
"""


async def measure(engine: SandboxEngine, *, samples: int, many: int, piece_bytes: int = 500_000) -> dict[str, Any]:
    """``create_ms`` with and without network, ``request_ms`` by way of the proxy and direct, and ``many`` at once.

    A request is name, connection, answer. Of the many, each has a megabyte under way in two pieces; ``process_mb`` is
    the peak of this whole process meanwhile, sandboxes' records included. Raises EnvironmentFault, UsageError.
    """
    _files_for(many)
    async with _origin(many, piece_bytes) as port:
        with_network = SandboxPolicy.parse({"network": {"rules": [
            {"host": _HOST, "ports": [80], "address": f"127.0.0.1:{port}"}]}})
        found = {
            "create_ms": await _creates(engine, with_network, samples),
            "request_ms": await _requests(engine, with_network, port, samples),
            "many": await _many(engine, with_network, many, piece_bytes) if many else None,
        }
    created, requested = found["create_ms"], found["request_ms"]
    assert created is not None
    assert requested is not None
    found["added_ms"] = {"create": round(created["with"]["p50"] - created["without"]["p50"], 3),
                         "request": round(requested["proxy"]["p50"] - requested["direct"]["p50"], 3)}
    return found


async def _creates(engine: SandboxEngine, policy: SandboxPolicy, samples: int) -> dict[str, Any]:
    """In bursts by turns: a busy moment falls upon both, and neither pays for what the other left behind."""
    taken: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(max(1, samples // BURST)):
        for name, given in (("without", SandboxPolicy()), ("with", policy)):
            for number in range(_WARMING + BURST):
                began = time.perf_counter()
                box = await engine.create(EnvironmentSpec(), given)
                if number >= _WARMING:
                    taken[name].append(1000 * (time.perf_counter() - began))
                await box.close()
    return {name: _figures(values) for name, values in taken.items()}


async def _requests(engine: SandboxEngine, policy: SandboxPolicy, port: int, samples: int) -> dict[str, Any]:
    box = await engine.create(EnvironmentSpec(), policy)
    try:
        inside = await _fetch(box, "/", samples + _WARMING)
    finally:
        await box.close()
    argv = (sys.executable, "-c", _CLIENT, "127.0.0.1", str(port), "/", str(samples + _WARMING))
    direct = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    said, _ = await direct.communicate()
    return {"proxy": _figures(inside[0][_WARMING:]), "direct": _figures(json.loads(said)[0][_WARMING:])}


async def _fetch(box: Sandbox, path: str, count: int) -> tuple[list[float], int]:
    done = await box.exec(["python3", "-c", _CLIENT, _HOST, "80", path, str(count)], timeout_s=_PATIENCE_S)
    if done.exit_code:
        raise EnvironmentFault(f"a fetch through the proxy failed: {done.stderr.decode(errors='replace')[-300:]}")
    taken, got = json.loads(done.stdout)
    return taken, got


async def _many(engine: SandboxEngine, policy: SandboxPolicy, count: int, piece_bytes: int) -> dict[str, Any]:
    boxes: list[Sandbox] = []
    try:
        while len(boxes) < count:
            wanted = min(_AT_A_TIME, count - len(boxes))
            boxes += await asyncio.gather(*(engine.create(EnvironmentSpec(), policy) for _ in range(wanted)))
        before, began = _resident_mb(), time.perf_counter()
        peak = asyncio.ensure_future(_peak())
        fetched = await asyncio.gather(*(_fetch(box, "/many", 1) for box in boxes))
        seconds = time.perf_counter() - began
        peak.cancel()
        most = await peak
    finally:
        while boxes:
            await asyncio.gather(*(boxes.pop().close() for _ in range(min(_AT_A_TIME, len(boxes)))))
    if any(got < 2 * piece_bytes for _, got in fetched):
        raise EnvironmentFault("a fetch through the proxy was cut short")
    return {"n": count, "bytes_each": 2 * piece_bytes, "seconds": round(seconds, 2), "process_mb": round(most, 1),
            "grown_mb": round(most - before, 1)}


async def _peak() -> float:
    """The most memory this process had until it is cancelled, MiB."""
    most = 0.0
    try:
        while True:
            most = max(most, _resident_mb())
            await asyncio.sleep(_LOOK_S)
    except asyncio.CancelledError:
        return most


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@asynccontextmanager
async def _origin(together: int, piece_bytes: int) -> AsyncIterator[int]:
    """A server in a process of its own, which is not to be weighed; its port on the loopback."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _ORIGIN, str(together), str(piece_bytes), stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


def _files_for(count: int) -> None:
    """Raise the limit on open files as far as is needed. Raises UsageError."""
    needed = count * _FDS_EACH + _FDS_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise UsageError(f"{count} sandboxes with network need {needed} open files, and {hard} are allowed",
                             remedy="Raise it (ulimit -Hn), or ask for fewer with --idle.")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _figures(values: Sequence[float]) -> dict[str, Any]:
    return {"p50": round(statistics.median(values), 3), "p95": round(quantile(values, 0.95), 3), "n": len(values)}
