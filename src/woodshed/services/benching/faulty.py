"""Faulty: the parts of an attempt, some of which refuse or hang now and then, as a machine's, an endpoint's do.

The engine and the verifier are plug-ins of the benchmark around the real ones; which of them strikes is drawn from the
seed in ``WOODSHED_BENCH_FAULTS`` (``rate:seed``), anew in each process. The model is a real HTTP server that plays the
right answer, with statuses and hangs in between.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from woodshed import plugins
from woodshed.errors import EnvironmentFault
from woodshed.interfaces import BlobSink, Emit, SandboxEngine
from woodshed.model import ChangeSet, EnvironmentSpec, SandboxPolicy, Task, Verdict

POINTS = {"woodshed.engines": {"faulty": f"{__name__}:FaultyEngine"},
          "woodshed.verifiers": {"faulty": f"{__name__}:FaultyVerifier"}}
VARIABLE = "WOODSHED_BENCH_FAULTS"
REFUSED, HUNG = "the bench refuses a sandbox", "the bench let the verifier hang"
_HANGS_S = 3.0


def _chance() -> tuple[random.Random, float]:
    rate, _, seed = os.environ.get(VARIABLE, "0:0").partition(":")
    return random.Random(f"{seed}.{os.getpid()}"), float(rate)  # noqa: S311 (repeatable, nothing secret)


class FaultyEngine:
    """The native engine; it refuses a sandbox now and then."""

    def __init__(self, home: Path) -> None:
        self._engine = plugins.engine("native", home)
        self._dice, self._rate = _chance()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def create(self, spec: EnvironmentSpec, policy: SandboxPolicy, **how: Any) -> Any:
        """As the native engine's, or EnvironmentFault."""
        if self._dice.random() < self._rate / 2:  # an attempt asks twice
            raise EnvironmentFault(REFUSED)
        return await self._engine.create(spec, policy, **how)


class FaultyVerifier:
    """The usual verifier; now and then it hangs, and is cut off.

    Cut off here, after seconds: the deadline that the product itself sets to a verification allows for pulling an
    image, ten minutes, and tests of its own hold it to that.
    """

    def __init__(self) -> None:
        self._verifier = plugins.verifier("fresh")
        self._dice, self._rate = _chance()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._verifier, name)

    async def verify(
        self, task: Task, changes: ChangeSet, blobs: BlobSink, engine: SandboxEngine, emit: Emit
    ) -> Verdict:
        """As the usual one's, if it ever comes."""
        if self._dice.random() < self._rate:
            await asyncio.sleep(_HANGS_S)
            raise EnvironmentFault(HUNG)
        return await self._verifier.verify(task, changes, blobs, engine, emit)


def tasks(folder: Path, count: int) -> list[Path]:
    """So many small tasks: a number is to be written into a file, by its own script as the reference."""
    made = []
    for number in range(count):
        task = folder / f"number-{number:03d}"
        for part in ("tests", "solution"):
            (task / part).mkdir(parents=True)
        (task / "task.toml").write_text(
            f'schema_version = "1.4"\n[task]\nname = "bench/number-{number:03d}"\n[verifier]\ntimeout_sec = 5\n'
            '[environment]\nworkdir = "/workspace"\n[woodshed]\nimage = "host"\n')
        (task / "instruction.md").write_text(f"Write the number {number} into /workspace/answer.txt.\n")
        (task / "solution" / "solve.sh").write_text(f"#!/bin/bash\necho {number} > /workspace/answer.txt\n")
        (task / "tests" / "test.sh").write_text(
            f'#!/bin/bash\n[ "$(cat /workspace/answer.txt)" = {number} ] && R=1 || R=0\n'
            "echo $R > /logs/verifier/reward.txt\n")
        made.append(task)
    return made


@contextmanager
def model(rate: float, seed: int) -> Iterator[tuple[str, Counter[str]]]:
    """The base URL of a server that solves the tasks above by a tool call, and what it did, by HTTP status."""
    dice, lock, did = random.Random(seed), threading.Lock(), Counter[str]()  # noqa: S311

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Says nothing."""

        def do_POST(self) -> None:
            """One answer, or a fault."""
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                fault = dice.choice(("429", "500", "hang")) if dice.random() < rate else "200"
                did[fault] += 1
            if fault == "hang":
                time.sleep(_HANGS_S)
                self.close_connection = True
                return
            self._say(int(fault), _solved(asked) if fault == "200" else {"error": {"message": "the bench says no"}})

        def _say(self, status: int, answer: Any) -> None:
            body = json.dumps(answer).encode()
            with suppress(OSError):
                self.send_response(status)
                if status == 429:
                    self.send_header("Retry-After", "1")
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", did
    finally:
        server.shutdown()
        server.server_close()


def _solved(asked: dict[str, Any]) -> dict[str, Any]:
    """The command that solves the task of the conversation, and once that was run, the end."""
    said = asked["messages"]
    text = " ".join(str(one.get("content")) for one in said if one["role"] == "user")
    number = re.search(r"Write the number (\d+)", text)
    message: dict[str, Any] = {"role": "assistant", "content": "It is written."}
    if number is not None and not any(one["role"] == "tool" for one in said):
        arguments = json.dumps({"command": f"echo {number[1]} > /workspace/answer.txt"})
        message = {"role": "assistant", "content": "", "tool_calls": [
            {"id": "write", "type": "function", "function": {"name": "bash", "arguments": arguments}}]}
    return {"choices": [{"message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10}}
