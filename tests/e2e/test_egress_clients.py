"""Clients as they are: those that would rather speak HTTP/2 do so where nobody reads, and go on in HTTP/1.1 where
requests are read."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from egressbox import SECRET, TOKEN, box_with, python
from upstreams import host
from woodshed.sandbox.egress.ca import Authority
from woodshed.sandbox.native.engine import NativeEngine

pytest.importorskip("cryptography", reason="cryptography is missing: pip install 'woodshed[intercept]'")
CURL = "curl -sS -m 20 -o /dev/null -w '%{http_code} %{http_version}' "


@pytest.fixture
async def engine(shed_home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NativeEngine]:
    monkeypatch.setenv("COMPANY_TOKEN", SECRET)
    made = NativeEngine(shed_home)
    yield made
    await made.close()


async def test_curl_goes_on_in_http_1_1(engine: NativeEngine, tmp_path: Path) -> None:
    """By ALPN where TLS is intercepted, by an upgrade that nobody takes where it begins outside; with its secret."""
    async with host(name="api.test", folder=tmp_path) as api:
        rule: dict[str, Any] = {"host": "api.test", "address": api.address, "ca_file": api.ca_file, "secrets": TOKEN,
                                "intercept": True, "upstream_tls": True}
        async with box_with(engine, rule) as (box, seen):
            if b"HTTP2" not in (await box.exec("curl --version")).stdout:
                pytest.skip("curl with HTTP/2 is missing on this machine: apt install curl")
            for url in ("https://api.test/", "http://api.test/"):
                done = await box.exec(f'{CURL} --http2 -H "Authorization: Bearer $TOKEN" {url}')
                assert done.stdout == b"200 1.1", done
            assert [SECRET.encode() in head for head in api.heads] == [True, True]
            assert not any(name in head for head in api.heads for name in (b"pgrade", b"HTTP2"))
            assert len([decision for decision in seen if decision.get("secrets") == ["TOKEN"]]) == 2
            done = await box.exec(f"{CURL} --http2-prior-knowledge http://api.test/")
            assert done.exit_code != 0
            assert seen.reasons("refused") == ["not a request of HTTP/1.1"]


async def test_a_client_speaks_http_2_where_nobody_reads(engine: NativeEngine, tmp_path: Path) -> None:
    """What client and server agree upon within TLS is theirs."""
    authority, context = Authority(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (tmp_path / "chain.pem").write_bytes(authority.chain("api.test"))
    context.load_cert_chain(tmp_path / "chain.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])

    async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hangs_up, "127.0.0.1", 0, ssl=context)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with box_with(engine, {"host": "api.test", "address": address}) as (box, _):
            await box.write("/tmp/ca.pem", authority.pem)
            assert await python(box, """
context = ssl.create_default_context(cafile="/tmp/ca.pem")
context.set_alpn_protocols(["h2", "http/1.1"])
print(context.wrap_socket(opened("api.test", 443), server_hostname="api.test").selected_alpn_protocol())
""") == "h2"


@pytest.mark.slow
async def test_a_client_of_http_2_in_python_goes_on_in_http_1_1(engine: NativeEngine, tmp_path: Path) -> None:
    """httpx with h2, told to use HTTP/2, has its answer through an interception."""
    packages = tmp_path / "packages"
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(packages), "httpx[http2]"]
    done = await asyncio.to_thread(subprocess.run, install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"httpx[http2] cannot be installed here, a way to an index is needed: {done.stderr[-200:]}")
    async with host(name="api.test", folder=tmp_path) as api:
        rule: dict[str, Any] = {"host": "api.test", "address": api.address, "ca_file": api.ca_file, "intercept": True}
        async with box_with(engine, rule) as (box, _):
            await box.upload(packages, "/workspace/packages")
            got = await box.exec("PYTHONPATH=packages python3 -c '" + """
import httpx, json
with httpx.Client(http2=True) as client:
    answer = client.get("https://api.test/")
print(json.dumps([answer.http_version, answer.text]))'""")
            assert got.exit_code == 0, got
            assert json.loads(got.stdout) == ["HTTP/1.1", "well\n"]
