"""Sandboxes with a network by policy, what is told of them, and small clients to run inside."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine

SPEC = EnvironmentSpec()
SECRET = "a-secret-of-the-company"
TOKEN = [{"name": "TOKEN", "env": "COMPANY_TOKEN"}]
CLIENT = """
import json, socket, ssl, struct, sys, time
def opened(host, port):
    s = socket.create_connection((host, port), timeout=20)
    return s
def rest(s):
    got = b""
    try:
        while piece := s.recv(65536):
            got += piece
    except OSError as error:
        got += type(error).__name__.encode()
    return got
"""


class Seen(list[Mapping[str, Any]]):
    """What was told of one sandbox."""

    def reasons(self, verdict: str) -> list[str]:
        return [str(decision.get("reason", "")) for decision in self if decision["verdict"] == verdict]


@asynccontextmanager
async def box_with(
    engine: NativeEngine, *rules: Mapping[str, Any], **more: Any
) -> AsyncIterator[tuple[NativeSandbox, Seen]]:
    box = await engine.create(SPEC, SandboxPolicy.parse({"network": {"rules": list(rules), **more}}))
    seen = Seen()
    box.on_decision(seen.append)
    try:
        yield box, seen
    finally:
        await box.close()
    assert SECRET not in json.dumps(list(seen))


async def python(box: NativeSandbox, script: str) -> str:
    result = await box.exec(["python3", "-c", CLIENT + script], timeout_s=60)
    assert result.exit_code == 0, result
    return result.stdout.decode().strip()


async def curl(box: NativeSandbox, *arguments: str) -> str:
    """With python3: not every machine has curl."""
    script = """
import urllib.request, urllib.error, os
def ask(url, method="GET", data=None, **fields):
    fields = {k: os.path.expandvars(v) for k, v in fields.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, fields, method=method), timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()
print(ask(ARGS))
""".replace("ARGS", ", ".join(arguments))
    return await python(box, script)
