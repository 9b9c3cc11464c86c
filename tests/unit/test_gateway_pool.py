"""Pools of endpoints: where a call goes, who rests, and who is left alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from woodshed.errors import ModelRateLimited, ModelRefused, ModelUnreachable, UsageError
from woodshed.gateway.call import Patience
from woodshed.gateway.client import Gateway
from woodshed.gateway.pool import FAILURES, REST_S, Pools, Stay
from woodshed.interfaces import ModelRequest
from woodshed.model import Message, ModelSpec, Sampling
from woodshed.services.agents import parse_model

A, B, C = (f"http://{name}/v1" for name in "abc")
SPEC = ModelSpec(name="m", base_url=A, others=(B, C))
ASK = ModelRequest(messages=(Message(role="user", content="hello"),))


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


async def one(pools: Pools, stay: Stay | None = None, fault: Exception | None = None, spec: ModelSpec = SPEC) -> str:
    """Where a call went, which came to ``fault``."""
    async with pools.taken(spec, stay or Stay()) as endpoint:
        if fault is not None:
            raise fault
    return endpoint.url


async def failing(pools: Pools, url: str, times: int = FAILURES) -> None:
    """The endpoint fails so often in a row."""
    for _ in range(times):
        with pytest.raises(ModelUnreachable):
            await one(pools, Stay(pools.endpoint(url)), ModelUnreachable("down"))


async def test_new_attempts_spread_and_stay_where_they_went() -> None:
    """Each first call goes where the load is least, further ones of the same attempt to the same place."""
    pools = Pools(clock=Clock())
    stays = [Stay() for _ in range(6)]
    first = [await one(pools, stay) for stay in stays]
    assert Counter(first) == {A: 2, B: 2, C: 2}
    assert [await one(pools, stay) for stay in stays for _ in range(3)] == [url for url in first for _ in range(3)]


async def test_what_waits_for_room_counts_as_load() -> None:
    """With room for one call each, three run at once, and a fourth goes to no endpoint that is fuller than another."""
    pools = Pools(concurrent=1, clock=Clock())
    async with pools.taken(SPEC, Stay()) as first, pools.taken(SPEC, Stay()) as second, \
            pools.taken(SPEC, Stay()) as third:
        assert {first.url, second.url, third.url} == {A, B, C}
        waiting = asyncio.create_task(one(pools))
        await asyncio.sleep(0)
        assert sorted(pools.endpoint(url).load for url in (A, B, C)) == [1, 1, 2]
        assert not waiting.done()
    assert await waiting in (A, B, C)
    assert [pools.endpoint(url).load for url in (A, B, C)] == [0, 0, 0]


async def test_a_dead_endpoint_rests_and_is_tried_by_one_call() -> None:
    """After its failures it gets nothing, after its rest one call; that one failing, it rests twice as long."""
    clock = Clock()
    pools = Pools(clock=clock)
    await failing(pools, A)
    assert {await one(pools) for _ in range(9)} == {B, C}
    assert await one(pools, Stay(pools.endpoint(A))) in (B, C)
    clock.now += REST_S
    async with pools.taken(SPEC, Stay(pools.endpoint(A))) as trial:
        assert trial.url == A
        assert {await one(pools, Stay(pools.endpoint(A))) for _ in range(4)} <= {B, C}
    assert await one(pools, Stay(pools.endpoint(A))) == A
    await failing(pools, A)
    clock.now += REST_S
    await failing(pools, A, 1)
    clock.now += REST_S
    assert not pools.endpoint(A).takes(clock.now)
    clock.now += REST_S
    assert pools.endpoint(A).takes(clock.now)


async def test_who_waited_for_room_of_one_that_died_goes_elsewhere() -> None:
    """The call never gets to the dead endpoint."""
    pools = Pools(concurrent=1, clock=Clock())
    spec = SPEC.model_copy(update={"others": (B,)})
    endpoint = pools.endpoint(A)
    async with pools.taken(spec, Stay(endpoint)):
        waiting = asyncio.create_task(one(pools, Stay(endpoint), spec=spec))
        await asyncio.sleep(0)
    for _ in range(FAILURES):  # meanwhile: the waiting call has not run again yet
        endpoint.failed(100.0)
    assert await waiting == B
    assert endpoint.load == 0


async def test_a_pool_that_is_down_as_a_whole_is_asked_all_the_same() -> None:
    """Where none is well, each gets its share, as a single endpoint does that fails."""
    pools = Pools(clock=Clock())
    for url in (A, B, C):
        await failing(pools, url)
    assert {await one(pools) for _ in range(3)} <= {A, B, C}
    single = ModelSpec(name="m", base_url="http://d/v1")
    await failing(pools, "http://d/v1")
    assert await one(pools, spec=single) == "http://d/v1"


async def test_an_answer_that_is_a_refusal_is_no_failure() -> None:
    """A request that is refused for good says nothing against the endpoint."""
    pools = Pools(clock=Clock())
    for _ in range(FAILURES + 1):
        with pytest.raises(ModelRefused):
            await one(pools, Stay(pools.endpoint(A)), ModelRefused("no"))
    assert pools.endpoint(A).takes(100.0)


async def test_one_that_asks_to_be_left_alone_is() -> None:
    """It is passed over as long as it asked; where there is no other, who comes waits just that long."""
    clock = Clock()
    pools = Pools(clock=clock)
    with pytest.raises(ModelRateLimited):
        await one(pools, Stay(pools.endpoint(A)), ModelRateLimited("slow", 30.0))
    assert {await one(pools, Stay(pools.endpoint(A))) for _ in range(4)} <= {B, C}
    clock.now += 30
    assert await one(pools, Stay(pools.endpoint(A))) == A
    single, held = ModelSpec(name="m", base_url=A), list[float]()

    async def hold(left_s: float) -> None:
        held.append(left_s)

    with pytest.raises(ModelRateLimited):
        await one(pools, None, ModelRateLimited("slow", 5.0), single)
    async with pools.taken(single, Stay(), hold=hold):
        pass
    assert held == [5.0]


@dataclass
class Upstream:
    """An endpoint that answers with one status, and counts."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        answer = {"choices": [{"message": {"content": self.url}}], "usage": {}}
        return web.json_response(answer if self.status == 200 else {}, status=self.status, headers=self.headers)


@asynccontextmanager
async def endpoints(*upstreams: Upstream) -> AsyncIterator[ModelSpec]:
    runners = []
    for one in upstreams:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", one.answer)
        runners.append(web.AppRunner(app, shutdown_timeout=0.1))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        one.url = f"http://127.0.0.1:{runners[-1].addresses[0][1]}/v1"
    try:
        yield ModelSpec(name="m", base_url=upstreams[0].url, others=tuple(one.url for one in upstreams[1:]))
    finally:
        for runner in runners:
            await runner.cleanup()


async def test_a_call_fails_over_and_the_dead_one_takes_no_traffic() -> None:
    """Each attempt gets its answer at once from the other endpoint; the broken one is asked only until it rests."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    broken, well = Upstream(500), Upstream()
    async with endpoints(broken, well) as spec:
        gateway = Gateway(patience=Patience(sleep=sleep))
        for _ in range(20):
            client = gateway.client(spec, lambda kind, data: None)
            assert (await client.call(ASK)).endpoint == well.url
        await gateway.close()
    assert (broken.asked, well.asked) == (FAILURES, 20)


async def test_a_retry_elsewhere_does_not_wait_for_what_this_one_asked() -> None:
    """A Retry-After of minutes holds for the endpoint that said it, and not for the call."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    busy, well = Upstream(429, {"Retry-After": "300"}), Upstream()
    async with endpoints(busy, well) as spec:
        gateway = Gateway(patience=Patience(sleep=sleep))
        client = gateway.client(spec, lambda kind, data: None)
        assert (await client.call(ASK)).endpoint == well.url
        await gateway.close()
    assert busy.asked == 1
    assert max(waits) < 1


def test_a_pool_is_said_by_its_addresses() -> None:
    """NAME@URL,URL names each once, and every address is looked at."""
    spec = parse_model(f"m@{A}/, {B},{A}", sampling=Sampling())
    assert spec.addresses == (A, B)
    with pytest.raises(UsageError):
        parse_model(f"m@{A},ftp://x", sampling=Sampling())
    with pytest.raises(UsageError, match="a user, a password"):
        parse_model(f"m@{A},http://u:p@x/v1", sampling=Sampling())
