"""Rollouts with tokens, from a trainer's request to its rows: asked, executed in sandboxes, delivered and settled."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from capturekit import Truth, held_against
from servekit import KEY, an_offer, talking
from tokenserver import VOCABULARY, TokenServer, call, tokens_served
from woodshed.errors import Conflict, EnvironmentFault, Missing, UsageError
from woodshed.model import Sampling
from woodshed.model.delivery import Address, Asked
from woodshed.model.drift import Drift
from woodshed.model.rollout import CaptureLevel
from woodshed.services.home import Home, opened
from woodshed.services.working import Terms, work
from woodshed.trainers.client import Client

TASK = "first-steps/write-file"


def solves(messages: Sequence[Mapping[str, Any]], chance: random.Random) -> str:
    """Looks, writes the file, says that it is done; in words of its own."""
    said = sum(message["role"] == "assistant" for message in messages)
    words = " ".join(chance.choice(("the", "hello", "thing", "world")) for _ in range(6))
    commands = ["ls", "echo 'hello world' > hello.txt"]
    return words + (call("bash", command=commands[said]) if said < 2 else "")


def logged(server: TokenServer) -> Callable[[Sequence[int]], Sequence[Truth]]:
    """What the server's log says of calls with these seeds."""
    return lambda seeds: [Truth(one.prompt, one.completion, one.logprobs, len(one.prompt))
                          for one in server.delivered(seeds)]


@pytest.fixture
def home(new_home: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home of the test's own."""
    path = new_home()
    monkeypatch.setenv("WOODSHED_HOME", str(path))
    with opened(path) as home:
        yield home


async def test_a_trainer_gets_the_tokens_that_were_sampled(home: Home) -> None:
    """By our client: each row holds what the server's log says, by the version asked for; then all of it is settled."""
    with tokens_served(solves) as server:
        async with talking(home, an_offer(patterns=["http://127.0.0.1:*/v1"])) as talks:
            client = Client(talks.url, KEY)
            asked = Asked(tasks=[TASK], n=2, agent="loop", endpoint=Address(base_url=server.url, model="tiny"),
                          sampling=Sampling(max_tokens=500), capture=True, policy_version=7, idempotency_key="step")
            made = await asyncio.to_thread(client.ask, asked)
            assert (await asyncio.to_thread(client.ask, asked)).id == made.id
            await work(home, Terms(slots=2, until_empty=True), lambda sentence: None)
            groups = client.groups("trainer", requests=[made.id])
            group = await asyncio.to_thread(next, groups)
            members = [one.to_json() for one in group.rollouts]
            assert [(one.trainable, one.reward, one.capture_level) for one in group.rollouts] == [
                (True, 1.0, CaptureLevel.LOGPROBS)] * 2
            assert await asyncio.to_thread(held_against, logged(server), home.path, made.id, members, VOCABULARY) == 6
            assert {version for one in group.rollouts for row in one.rows for version in row.policy_versions} == {"7"}
            assert group.rollouts[0].prompt[0]["role"] == "system"
            assert await asyncio.to_thread(lambda: list(groups)) == [], "the one before was acknowledged"
            assert (await asyncio.to_thread(client.told, made.id)).groups.acked == 1
            metrics = (await talks.call("GET", "/metrics"))[1]
    assert 'woodshed_gateway_calls_total{result="answered"} 6' in metrics
    assert "woodshed_gateway_call_seconds_count 6" in metrics
    drift = sum((Counter(one.drift) for one in group.rollouts), Counter[str]())
    assert all(f'woodshed_prompts_total{{drift="{kind.value}"}} {drift[kind.value]}\n' in metrics for kind in Drift)


async def test_capture_that_an_endpoint_does_not_give_begins_nothing(home: Home) -> None:
    """The request pauses and says why; no attempt is burnt, and nobody is handed rows without ids."""
    with tokens_served(solves, told={"prompt_token_ids": None}) as server:
        async with talking(home, an_offer(patterns=["http://127.0.0.1:*/v1"])) as talks:
            client = Client(talks.url, KEY)
            asked = Asked(tasks=[TASK], agent="loop", endpoint=Address(base_url=server.url, model="tiny"), capture=True)
            made = await asyncio.to_thread(client.ask, asked)
            await work(home, Terms(slots=1, until_empty=True), lambda sentence: None)
            told = await asyncio.to_thread(client.told, made.id)
    assert (told.state, told.done, told.rollouts[0].executions) == ("paused", 0, 0)
    assert "does not give tokens+logprobs" in str(told.reason)


async def test_the_client_says_what_the_service_says(home: Home) -> None:
    """Problems are our errors, with field and remedy; a lost lease is a conflict; a dead service is no silence."""
    async with talking(home, an_offer(patterns=["http://127.0.0.1:*"])) as talks:
        client = Client(talks.url, KEY, patience_s=0.2)
        told = await asyncio.to_thread(client.announce, "http://127.0.0.1:8000/v1", "first")
        assert (told.endpoint, told.version) == ("http://127.0.0.1:8000/v1", "first")
        with pytest.raises(Missing, match="no task"):
            await asyncio.to_thread(client.ask, Asked(tasks=["none"], agent="nop"))
        await asyncio.to_thread(client.announce, "policy", 3)
        with pytest.raises(Conflict):
            await asyncio.to_thread(client.announce, "policy", 2)
        assert (await asyncio.to_thread(lambda: client.announce("policy", 2, back=True))).version == 2
        made = await asyncio.to_thread(client.ask, Asked(tasks=[TASK], agent="nop"))
        with pytest.raises(Conflict, match="others have"):
            await asyncio.to_thread(client.ack, [f"{made.id}.1.1"])
        assert (await asyncio.to_thread(client.cancel, made.id)).state == "cancelled"
        with pytest.raises(UsageError, match="refuses this key"):
            await asyncio.to_thread(Client(talks.url, "wrong").told, made.id)
    with pytest.raises(EnvironmentFault, match="does not answer"):
        await asyncio.to_thread(client.told, made.id)
