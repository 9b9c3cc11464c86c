"""Whoever reaches the service's port gets nothing without the key, and no more than the service offers with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit import EXAMPLES
from servekit import KEY, Talks, blank_home, end, served_apart, talking
from woodshed.api import serving
from woodshed.errors import UsageError
from woodshed.services.home import Home
from woodshed.services.keys import service_key

TYPED = {"Content-Type": "application/json"}
START = f"POST /v1/rollouts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n".encode()
GOOD = {"tasks": "first-steps/write-file", "agent": "oracle"}


@pytest.fixture(scope="module")
def one_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """One for all tests that leave nothing in it."""
    with blank_home(tmp_path_factory.mktemp("hostile") / "home") as home:
        yield home


@pytest.fixture(scope="module")
def one_service(one_home: Home) -> Iterator[str]:
    """A service for all tests that need no other."""
    with served_apart(one_home, connections=20) as url:
        yield url


@pytest.fixture
async def talks(one_service: str) -> AsyncIterator[Talks]:
    """Who speaks to it."""
    async with aiohttp.ClientSession() as session:
        yield Talks(one_service, session)


async def raw(talks: Talks, *parts: bytes) -> bytes:
    """What the service says to these bytes until it closes the connection, or the answer is there."""
    host, port = talks.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for part in parts:
            writer.write(part)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


@pytest.mark.parametrize("said", [
    {}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}, {"Authorization": KEY},
    {"Authorization": f"Bearer {KEY}x"}, {"Authorization": f"Bearer {KEY[:-1]}"}, {"Authorization": "Bearer "},
    {"X-Api-Key": KEY}, {"Cookie": f"key={KEY}"}])
async def test_without_the_key_nothing_is_told(talks: Talks, one_home: Home, said: dict[str, str]) -> None:
    """No route, no contract, no metrics, and not which paths there are; with it, they are there."""
    before = len(one_home.store.runs())
    for method, path in [("GET", "/v1/rollouts"), ("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/nothing"),
                         ("POST", "/v1/rollouts"), ("PUT", "/v1/policies/policy"), ("GET", "/v1/groups?consumer=a"),
                         ("POST", "/v1/groups/ack"), ("GET", "//health"), ("GET", "/health/"),
                         ("OPTIONS", "/v1/rollouts")]:
        status, problem = await talks.call(method, path, GOOD if method != "GET" else None, key=None, headers=said)
        assert (status, problem["status"]) == (401, 401), (method, path)
        assert KEY not in json.dumps(problem)
    assert len(one_home.store.runs()) == before
    assert (await talks.call("GET", "/health", key=None))[1] == {"status": "healthy"}
    assert (await talks.call("GET", "/v1/rollouts"))[0] == 200, "the control: with the key it is told"


@pytest.mark.parametrize("body", [
    [], 1, None, "x", {}, {"tasks": []}, {"tasks": 1}, {"tasks": [1]}, {**GOOD, "n": "2"}, {**GOOD, "n": 0},
    {**GOOD, "n": 1.5}, {**GOOD, "n": True}, {**GOOD, "n": 10**30}, {**GOOD, "unknown": 1},
    {**GOOD, "sampling": {"temperature": "hot"}}, {**GOOD, "sampling": {"temperature": -1}},
    {**GOOD, "deadlines": {"run_s": 0}}, {**GOOD, "deadlines": {"ever": 1}}, {**GOOD, "policy_version": -1},
    {**GOOD, "policy_version": True}, {**GOOD, "policy_version": 1.5}, {**GOOD, "idempotency_key": ""},
    {**GOOD, "idempotency_key": "a b"}, {**GOOD, "idempotency_key": "k" * 201}, {**GOOD, "on_stale": "maybe"},
    {**GOOD, "endpoint": {"base_url": "http://x"}}, {**GOOD, "seed": 2**60},
    {**GOOD, "n": 1024, "tasks": "first-steps"}])
async def test_a_body_of_the_wrong_kind_is_refused(talks: Talks, one_home: Home, body: Any) -> None:
    """By its field, in plain words, without what was sent; and nothing was begun."""
    before = len(one_home.store.runs())
    status, problem = await talks.call("POST", "/v1/rollouts", data=json.dumps(body).encode(), headers=TYPED)
    assert status == 422, problem
    assert problem["status"] == 422
    assert len(one_home.store.runs()) == before


@pytest.mark.parametrize("content", [
    b"", b"{", b"\xff\xfe", b'{"tasks": NaN}', b'{"tasks": "a", "tasks": Infinity}', b"[" * 100_000, b"{" * 50_000,
    b'{"tasks": ["a\\u0000b"], "agent": "oracle"}', b'{"tasks": ["\\ud800"], "agent": "oracle"}'])
async def test_what_is_no_json_is_refused(talks: Talks, content: bytes) -> None:
    """Broken, deep, or with what no name may hold."""
    status, problem = await talks.call("POST", "/v1/rollouts", data=content, headers=TYPED)
    assert status in (404, 422), problem


FIELDS = ["tasks", "n", "agent", "endpoint", "sampling", "limits", "policy_version", "idempotency_key", "x"]
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(FIELDS), inner, max_size=4), max_leaves=8)


@pytest.mark.slow  # many examples; the bodies above are its small sibling
async def test_no_body_breaks_it(talks: Talks) -> None:
    """Whatever JSON comes on any route, the answer is a refusal, and never a fault of ours."""
    loop = asyncio.get_running_loop()

    @settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
    @given(body=JSON, path=st.sampled_from(["/v1/rollouts", "/v1/groups/ack", "/v1/groups/renew",
                                            "/v1/policies/policy"]))
    def check(body: Any, path: str) -> None:
        method = "PUT" if "policies" in path else "POST"
        asking = talks.call(method, path, data=json.dumps(body).encode(), headers=TYPED)
        status, problem = asyncio.run_coroutine_threadsafe(asking, loop).result()
        assert status in (404, 409, 422), (status, problem)

    await asyncio.to_thread(check)


@pytest.mark.parametrize("name", ["../../../etc", "/etc/passwd", "first-steps/../../../etc", "first-steps/%2e%2e",
                                  "..\\..\\etc", "first-steps\0", "~root", "file:///etc", "."])
async def test_no_name_of_a_task_leads_out(talks: Talks, name: str) -> None:
    """A path is no name; and no answer tells where the tasks lie on this machine."""
    status, problem = await talks.call("POST", "/v1/rollouts", {**GOOD, "tasks": [name], "agent": "none"})
    assert status in (404, 422), problem
    assert str(EXAMPLES) not in json.dumps(problem)


@pytest.mark.parametrize("endpoint", [{"base_url": "http://169.254.169.254/latest", "model": "m"},
                                      {"base_url": "file:///etc/passwd", "model": "m"}, "other", "policy@evil"])
async def test_no_endpoint_but_what_is_offered(talks: Talks, endpoint: Any) -> None:
    """An address of the asker's is refused unless its operator allowed such."""
    status, problem = await talks.call("POST", "/v1/rollouts", {**GOOD, "agent": "loop", "endpoint": endpoint})
    assert status in (404, 422), problem
    assert problem["field"].startswith("endpoint")


async def test_a_body_has_a_size(talks: Talks) -> None:
    """Too large by what it says or by what comes is refused, and its sender hears why."""
    chunks = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    assert b" 413 " in await raw(talks, START, b"Content-Length: 1000001\r\n\r\n", b'{"tasks": "')
    assert b" 413 " in await raw(talks, START, b"Transfer-Encoding: chunked\r\n\r\n", *[chunks] * 20, b"0\r\n\r\n")
    assert b" 401 " in await raw(talks, b"POST /v1/rollouts HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n")


async def test_who_is_slow_or_says_nothing_is_left(one_home: Home) -> None:
    """A connection without a request, with half of one, or with half a body, is closed."""
    async with talking(one_home, head_s=0.2, body_s=0.2) as talks:
        assert b" 408 " in await raw(talks, START, b"Content-Length: 10\r\n\r\n", b"{")
        assert await raw(talks) == b""
        assert await raw(talks, b"GET /health HTTP/1.1\r\nHost") == b""


@pytest.mark.parametrize("said", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET\r\n\r\n",
                                  b"GET /health HTTP/1.1\r\nA: " + b"b" * 100_000 + b"\r\n\r\n"])
async def test_what_is_no_http_is_refused(talks: Talks, said: bytes) -> None:
    """TLS, half a line, a head of a hundred kilobytes."""
    assert b" 400 " in await raw(talks, said)


async def test_many_connections_do_not_take_it_down(talks: Talks) -> None:
    """Beyond the bound they are told to come again; when they are gone, everyone is served."""
    host, port = talks.url.removeprefix("http://").split(":")
    held = [await asyncio.open_connection(host, int(port)) for _ in range(40)]
    async with aiohttp.ClientSession() as session, session.get(talks.url + "/health") as answer:
        assert answer.status == 503
    for _, writer in held:
        writer.close()
        await writer.wait_closed()
    while (status := (await talks.call("GET", "/health"))[0]) == 503:  # noqa: ASYNC110 (only the service knows)
        await asyncio.sleep(0.02)
    assert status == 200


async def test_who_leaves_while_it_waits_is_handed_nothing(talks: Talks, one_home: Home) -> None:
    """A group that completes after its poll was given up is free for the next one at once."""
    made = await talks.ask(seed=77)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(talks.call("GET", f"/v1/groups?consumer=a&wait_s=100&request={made['id']}"), 0.3)
    end(one_home, made["attempts"], 1.0)
    status, told = await talks.call("GET", f"/v1/groups?consumer=b&wait_s=100&request={made['id']}")
    assert (status, len(told["groups"]), told["groups"][0]["deliveries"]) == (200, 1, 1)


# -- the key, and where it listens -------------------------------------------------------------------------------------


def test_the_key_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    """In a file that is its owner's alone; the same at the next start; refused where others may read it."""
    key, file = service_key(tmp_path)
    assert file is not None
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(key) > 40
    assert service_key(tmp_path) == (key, file)
    file.chmod(0o644)
    with pytest.raises(UsageError, match="others may read it"):
        service_key(tmp_path)
    file.unlink()
    file.symlink_to("/etc/hostname")
    with pytest.raises(UsageError):
        service_key(tmp_path)


def test_a_given_key_leaves_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that the service starts do not inherit it; a key that anyone could guess is refused unseen."""
    monkeypatch.setenv("WOODSHED_SERVE_KEY", "x" * 32)
    assert service_key(tmp_path) == ("x" * 32, None)
    assert service_key(tmp_path)[0] != "x" * 32, "it is not there any more"
    monkeypatch.setenv("WOODSHED_SERVE_KEY", "s3cret")
    with pytest.raises(UsageError) as caught:
        service_key(tmp_path)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_it_listens_on_loopback_unless_told_otherwise(host: str) -> None:
    """An address that other machines reach is refused; the control: with the flag it is taken."""
    with pytest.raises(UsageError, match="other machines"):
        serving.listening(host, 0)
    with serving.listening("0.0.0.0", 0, remote=True) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
    with serving.listening("localhost", 0) as listener:
        assert serving.address(listener).startswith("http://")
