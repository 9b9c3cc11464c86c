"""Egress where requests are read: secrets, methods, interception."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from egressbox import SECRET, SPEC, TOKEN, box_with, curl, python
from upstreams import host
from woodshed.errors import UsageError
from woodshed.model import SandboxPolicy
from woodshed.sandbox.conformance import MemoryBlobs
from woodshed.sandbox.images import Images
from woodshed.sandbox.native.egress import CA_FILE
from woodshed.sandbox.native.engine import NativeEngine

pytest.importorskip("cryptography", reason="cryptography is missing: pip install 'woodshed[intercept]'")


@pytest.fixture
async def engine(shed_home: Path, images: Images, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NativeEngine]:
    monkeypatch.setenv("COMPANY_TOKEN", SECRET)
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


@pytest.mark.parametrize(("way", "url"), [("upstream_tls", "http://api.test/x?q"), ("intercept", "https://api.test/x?q")])
async def test_a_secret_reaches_its_host_and_never_the_sandbox(
    engine: NativeEngine, tmp_path: Path, way: str, url: str
) -> None:
    """The host gets the secret, in a header or in Basic credentials; the sandbox has a placeholder, and stars where the
    answer repeats what was sent."""
    async with host(name="api.test", folder=tmp_path, body=lambda head: b"sent: " + head) as api:
        rule = {"host": "api.test", "address": api.address, "ca_file": api.ca_file, way: True, "secrets": TOKEN}
        async with box_with(engine, rule) as (box, seen):
            answer = await curl(box, f'"{url}"', 'Authorization="Bearer $TOKEN"')
            assert f"Bearer {SECRET}".encode() in api.heads[0]
            assert "Bearer " + "*" * len(SECRET) in answer
            assert SECRET not in answer
            script = 'import base64, os; print(base64.b64encode(b"me:" + os.environb[b"TOKEN"]).decode())'
            basic = await python(box, script)
            answer = await curl(box, f'"{url}"', f'Authorization="Basic {basic}"')
            assert b"Basic bWU6YS1zZWNyZXQtb2YtdGhlLWNvbXBhbnk=" in api.heads[1]
            assert "bWU6YS1zZWNyZXQ" not in answer
            held = (await box.exec("env; cat /proc/self/environ")).stdout.decode()
            assert SECRET not in held
            assert "TOKEN=woodshed-secret-" in held
            uses = [decision for decision in seen if decision.get("secrets") == ["TOKEN"]]
            assert [use["path"] for use in uses] == ["/x", "/x"]


async def test_chunks_do_not_carry_a_secret_out(engine: NativeEngine, tmp_path: Path) -> None:
    """A host that repeats a secret in chunks of three bytes gives stars; what it streams arrives while it goes on."""
    async def repeats(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst.\r\n")
        await writer.drain()
        await heard.wait()
        for at in range(0, len(head), 3):
            writer.write(b"%x\r\n%b\r\n" % (len(head[at:at + 3]), head[at:at + 3]))
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    heard = asyncio.Event()
    async with host(name="api.test", folder=tmp_path, serve=repeats) as api:
        rule = {"host": "api.test", "address": api.address, "ca_file": api.ca_file, "upstream_tls": True}
        async with box_with(engine, rule | {"secrets": TOKEN}) as (box, _):
            asking = asyncio.ensure_future(python(box, """
import http.client, os, pathlib
one = http.client.HTTPConnection("api.test")
one.request("GET", "/", headers={"Authorization": "Bearer " + os.environ["TOKEN"]})
answer = one.getresponse()
pathlib.Path("first").write_bytes(answer.read(6))
print(answer.read())
"""))
            waiting = "until grep -q first. first; do sleep 0.05; done 2>/dev/null"
            assert (await box.exec(waiting, timeout_s=30)).exit_code == 0
            heard.set()
            answer = await asking
            assert "Bearer " + "*" * len(SECRET) in answer
            assert "Host: api.test" in answer


async def test_a_secret_is_for_its_host_alone(engine: NativeEngine, tmp_path: Path) -> None:
    """Another host gets the placeholder as it is; and in the clear nothing is sent to the secret's own host."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with host(name="a.test", folder=tmp_path / "a") as one, host(name="b.test", folder=tmp_path / "b") as two:
        kept = {"intercept": True, "secrets": TOKEN}
        rules = [{"host": "a.test", "address": one.address, "ca_file": one.ca_file, **kept},
                 {"host": "b.test", "address": two.address, "ca_file": two.ca_file, "upstream_tls": True}]
        async with box_with(engine, *rules) as (box, seen):
            await curl(box, '"http://b.test/"', 'Authorization="Bearer $TOKEN"')
            assert b"Bearer woodshed-secret-" in two.heads[0]
            assert "421" in await curl(box, '"http://b.test/"', 'Host="a.test"', 'X="$TOKEN"')
            assert "403" in await curl(box, '"http://a.test/"', 'Authorization="Bearer $TOKEN"')
            assert any("in the clear" in reason for reason in seen.reasons("refused"))
            assert one.heads == []


async def test_only_methods_of_the_rule_pass(engine: NativeEngine, tmp_path: Path) -> None:
    """A read-only host takes no POST, nor a header by which a GET is taken for one, also where TLS is intercepted."""
    async with host(name="api.test", folder=tmp_path) as api:
        rule = {"host": "api.test", "address": api.address, "ca_file": api.ca_file, "read_only": True}
        async with box_with(engine, rule | {"upstream_tls": True, "intercept": True}) as (box, seen):
            for scheme in ("http", "https"):
                assert "200" in await curl(box, f'"{scheme}://api.test/"')
                assert "403" in await curl(box, f'"{scheme}://api.test/"', '"POST"', 'b"x" * 200000')
                override = '**{"X-HTTP-Method-Override": "DELETE"}'
                assert "403" in await curl(box, f'"{scheme}://api.test/"', override)
            assert [head[:4] for head in api.heads] == [b"GET "] * 2
            assert seen.reasons("refused").count("the method POST; allowed here: GET, HEAD, OPTIONS") == 2


async def test_the_authority_of_a_sandbox_is_its_own(engine: NativeEngine, tmp_path: Path) -> None:
    """The file that programs are told of holds one more authority than the machine's, differs from box to box, is in no
    capture, and is not there where nothing is intercepted."""
    rules = ({"host": "a.test", "address": "127.0.0.1:1", "intercept": True},)
    found = []
    for _ in range(2):
        async with box_with(engine, *rules) as (box, _):
            found.append(await box.read(CA_FILE))
            assert (await box.exec("echo $SSL_CERT_FILE $NODE_EXTRA_CA_CERTS")).stdout.decode().split() == [CA_FILE] * 2
            await box.kill_all()
            assert (await box.changes(MemoryBlobs())).changes == ()
    assert found[0] != found[1]
    async with box_with(engine, {"host": "a.test"}) as (box, _):
        assert (await box.exec(["test", "-e", CA_FILE])).exit_code == 1
        assert (await box.exec("echo $SSL_CERT_FILE")).stdout == b"\n"


async def test_a_host_nobody_vouches_for_is_not_spoken_to(engine: NativeEngine, tmp_path: Path) -> None:
    """Where TLS begins outside its certificate is checked there, name and authority; nothing is sent to another."""
    async with host(name="other.test", folder=tmp_path) as api:
        rules = [{"host": "unknown.test", "address": api.address, "upstream_tls": True},
                 {"host": "api.test", "address": api.address, "upstream_tls": True, "ca_file": api.ca_file}]
        async with box_with(engine, *rules) as (box, seen):
            assert "502" in await curl(box, '"http://unknown.test/"')
            assert "502" in await curl(box, '"http://api.test/"')
            assert all(reason.startswith("its certificate: ") for reason in seen.reasons("failed"))
            assert api.heads == []


async def test_a_missing_authority_is_said(shed_home: Path, images: Images) -> None:
    """A file of trusted certificates that is not there is a usage error when the sandbox is to be made."""
    engine = NativeEngine(shed_home, images=images)
    rule = {"host": "a.test", "upstream_tls": True, "ca_file": "/no/such/ca.pem"}
    with pytest.raises(UsageError, match=r"/no/such/ca\.pem"):
        await engine.create(SPEC, SandboxPolicy.parse({"network": {"rules": [rule]}}))
    await engine.close()




def test_what_a_policy_does_not_hold_is_told(shed_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every host, and any protocol, are said to be so before anything runs; a secret that is missing is an error."""
    engine = NativeEngine(shed_home)
    rules = [{"host": "*"}, {"host": "db.test", "raw": True},
             {"host": "a.test", "upstream_tls": True, "secrets": TOKEN}]
    policy = SandboxPolicy.parse({"network": {"rules": rules}})
    monkeypatch.setenv("COMPANY_TOKEN", SECRET)
    assert [note.split(":")[1].split()[0] for note in engine.check(SPEC, policy)] == ["'*'", "db.test"]
    monkeypatch.delenv("COMPANY_TOKEN")
    with pytest.raises(UsageError, match="COMPANY_TOKEN"):
        engine.check(SPEC, policy)


async def test_the_authority_is_there_under_every_policy(engine: NativeEngine) -> None:
    """Also where nothing may be written, and for users without privileges."""
    policy = SandboxPolicy.parse({
        "network": {"rules": [{"host": "a.test", "address": "127.0.0.1:1", "intercept": True}]},
        "directories": [{"path": "/", "access": "read"}], "commands": {"allow": ["cat"]}, "privileges": "none"})
    box = await engine.create(SPEC, policy)
    try:
        read = await box.exec(["cat", CA_FILE])
        assert read.stdout.endswith(b"-----END CERTIFICATE-----\n")
    finally:
        await box.close()
