"""What is told of capturing: by options that make no sense, before a run begins, and where a run is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenserver import tokens_served
from woodshed.errors import UsageError
from woodshed.gateway.call import Patience
from woodshed.gateway.client import Gateway
from woodshed.interfaces import ModelRequest
from woodshed.model import Agent, Attempt, Durability, EventKind, Message, ModelSpec, Run, RunSpec, Sampling
from woodshed.model.agent import Capture
from woodshed.model.event import now
from woodshed.model.rollout import CaptureLevel
from woodshed.services.agents import parse_model
from woodshed.services.endpoints import captured
from woodshed.store import EventLog, Store

ASK = ModelRequest(messages=(Message(role="user", content='"flaws":["x"],"capture_level":"text"'),))


def test_options_are_refused_by_name() -> None:
    """An unknown server or level is refused with those that are known; a demand alone means to ask."""
    with pytest.raises(UsageError, match="unknown way to capture 'tgi'"):
        parse_model("m@http://x/v1", sampling=Sampling(), capture="tgi")
    with pytest.raises(UsageError, match="unknown level 'ids'"):
        parse_model("m@http://x/v1", sampling=Sampling(), require="ids")
    asked = parse_model("m@http://x/v1", sampling=Sampling(), require="tokens")
    assert (asked.capture, asked.capture_least) == ("auto", CaptureLevel.TOKENS)
    assert not parse_model("m@http://x/v1", sampling=Sampling()).captures


async def test_what_an_endpoint_tells_is_said_once() -> None:
    """A sentence for each endpoint with its level; one that tells no ids says what it is good for."""
    with tokens_served(lambda messages, chance: "A") as server:
        gateway = Gateway(patience=Patience(tries=1))
        ways: tuple[Capture, ...] = ("auto", "auto", "transformers", "off")
        models = [ModelSpec(name="m", base_url=server.url, capture=how) for how in ways]
        told = await captured(gateway, models)
        dead = ModelSpec(name="m", base_url="http://127.0.0.1:9/v1", capture="auto")
        unknown = await captured(gateway, [dead])
        with pytest.raises(UsageError, match="does not give text: m at"):
            await captured(gateway, [dead.model_copy(update={"capture_least": CaptureLevel.TEXT})])
        await gateway.close()
    assert told == [f"m at {server.url}: capture tokens+logprobs (vllm)",
                    f"m at {server.url}: capture text (transformers): it tells no token ids that could be relied upon; "
                    "for evaluation and SFT"]
    assert "could not be found out yet" in unknown[0]
    assert len(server.log) == 2


@pytest.mark.parametrize("durability", [Durability.COARSE, Durability.FINE])
async def test_flawed_calls_are_counted_in_what_counts(tmp_path: Path, durability: Durability) -> None:
    """Of an attempt's newest execution, or of all that it goes on with; what a model says looks like no count."""
    agent = Agent(name="a", harness="loop", durability=durability)
    with Store(None, tmp_path) as store, tokens_served(lambda messages, chance: ASK.messages[0].content) as server:
        store.create_run(Run(id="r-1", spec=RunSpec(tasks=("/t",), agents=(agent,)), created_at=now()),
                         [Attempt(id="r-1.1", run="r-1", task="t", agent="a", index=0, seed=0)])
        gateway = Gateway()
        spec = ModelSpec(name="m", base_url=server.url, capture="vllm")
        for told in ({"usage": {"prompt_tokens": 1}}, {}):
            log = EventLog(store, "r-1.1", store.begin_execution("r-1.1", "h") or 0)
            client = gateway.client(spec, log.emit)
            await client.call(ASK)
            server.told = told
            await client.call(ASK)
            server.told = {}
            log.emit(EventKind.MODEL_RESULT, {"call": "m00001", "capture_level": "text", "flaws": ["x"],
                                              "inherited": True})
            log.flush()
        await gateway.close()
        found = store.captures.of("r-1", lasting=["a"] if durability is Durability.FINE else [])
    assert found == {"r-1.1": {"tokens+logprobs": 2, "drift:begun": 1, "drift:again": 1}
                     if durability is Durability.COARSE else
                     {"tokens+logprobs": 3, "text": 1, "flawed": 1, "drift:begun": 2, "drift:again": 1}}
