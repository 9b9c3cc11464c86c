"""An announced swap of weights holds for rows from that moment on, whoever executes them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kit import EXAMPLES, woodshed
from servekit import KEY, talking
from tokenserver import call, tokens_served
from woodshed.model import Sampling
from woodshed.model.delivery import Asked
from woodshed.services.home import opened
from woodshed.services.offer import made as offered
from woodshed.trainers.client import Client


async def test_an_announced_swap_stands_in_every_row_from_then_on(new_home: Callable[[], Path]) -> None:
    """A worker in another process stamps a call under way by what it began with, as mixed, and later ones anew."""
    trainers: list[Client] = []

    def solves(messages: Sequence[Mapping[str, Any]], chance: random.Random) -> str:
        said = sum(message["role"] == "assistant" for message in messages)
        if said == 1 and trainers:  # the swap comes while this very answer is sampled
            trainers.pop().announce("policy", 8)
        commands = ["ls", "echo 'hello world' > hello.txt"]
        return "now" + (call("bash", command=commands[said]) if said < 2 else "")

    with opened(new_home()) as home, tokens_served(solves) as server:
        offer = offered([EXAMPLES], endpoints=[f"policy=tiny@{server.url}"])
        async with talking(home, offer) as talks:
            client = Client(talks.url, KEY)
            trainers.append(Client(talks.url, KEY))
            await asyncio.to_thread(client.announce, "policy", 7)
            asked = Asked(tasks=["first-steps/write-file"], agent="loop", endpoint="policy",
                          sampling=Sampling(max_tokens=500), capture=True)
            made = await asyncio.to_thread(client.ask, asked)
            done = await asyncio.to_thread(
                lambda: woodshed("worker", "--slots", "1", "--until-empty", home=home.path))
            assert done.returncode == 0, done.stderr
            [group] = await asyncio.to_thread(lambda: client.take("trainer", requests=[made.id]).groups)
            assert home.store.rollouts.weights(made.id) == 8
            await asyncio.to_thread(lambda: client.announce("policy", 7, back=True))
            assert home.store.rollouts.weights(made.id) == 7
    [rollout] = group.rollouts
    began = {name: version for row in rollout.rows
             for name, version in zip(row.calls, row.policy_versions, strict=True)}
    assert (rollout.trainable, began) == (True, {"m00001": "7", "m00002": "7", "m00003": "8"})
    assert [name for row in rollout.rows for name in row.mixed] == ["m00002"]
