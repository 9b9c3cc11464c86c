"""Captured calls of one attempt: what is asked and recorded, what is loud, and what is never lost or doubled."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from localbox import LocalBox
from resumable import World
from scripted import a_task
from tokenserver import END, VOCABULARY, Generation, TokenServer, call, reader, tokens_served
from woodshed.errors import ModelRefused, StoreFault
from woodshed.gateway.call import Patience
from woodshed.gateway.client import Gateway
from woodshed.harness.loop import Loop
from woodshed.interfaces import Acting, ModelRequest, ToolSpec
from woodshed.measure.prefix import inherited
from woodshed.measure.resume import joined
from woodshed.model import (
    Agent,
    AgentLimits,
    Answer,
    Attempt,
    CheckpointRule,
    Event,
    EventKind,
    Message,
    ModelSpec,
    Outcome,
    Sampling,
    StopReason,
    Valid,
)
from woodshed.model.event import now
from woodshed.model.rollout import CaptureLevel, Rollout
from woodshed.model.verdict import Assurance
from woodshed.store.blobs import Blobs
from woodshed.trainers.records import Calls, calls_of
from woodshed.trainers.rollouts import rollout

ASK = ModelRequest(messages=(Message(role="user", content="hello"),))
Plays = Callable[[Sequence[Mapping[str, Any]], random.Random], str]


def says(text: str) -> Plays:
    return lambda messages, chance: text


@dataclass
class Log:
    """Events of one execution, and blobs."""

    folder: Path
    events: list[Event] = field(default_factory=list)

    def emit(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        self.events.append(Event(attempt="x", execution=1, seq=len(self.events), kind=kind, at=now(),
                                 data=json.loads(json.dumps(data, allow_nan=False))))

    def of(self, kind: EventKind) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind is kind]

    @property
    def blobs(self) -> Blobs:
        return Blobs(self.folder / "blobs")

    def calls(self, events: Sequence[Event] | None = None) -> Calls:
        return calls_of(events or self.events, reader(self.blobs), vocabulary=VOCABULARY)


def made(calls: Calls, execution: int = 1) -> Rollout:
    """The rollout of an attempt that passed."""
    outcome = Outcome(verdict=Valid(rewards={"reward": 1.0}, total=1.0, assurance=Assurance.CANARY),
                      stop=StopReason.FINISHED)
    return rollout(Attempt(id="x", run="r", task="t", agent="a", index=0, seed=0, executions=execution,
                           outcome=outcome), calls)


def generated(log: Sequence[Generation]) -> list[int]:
    return [one for generation in log for one in generation.completion]


def learnt(found: Rollout, calls: Calls) -> list[int]:
    """The sampled ids of all rows, in the order of their calls."""
    by: dict[str, list[int]] = {}
    lengths = {record.call: len(record.completion_token_ids or ()) for record in calls.records}
    for row in found.rows:
        ids = [one for one, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
        for name in row.calls:
            by[name], ids = ids[: lengths[name]], ids[lengths[name]:]
        assert ids == []
    return [one for name in sorted(by) for one in by[name]]


async def asked(server: TokenServer, log: Log, *requests: ModelRequest, **spec: Any) -> None:
    gateway = Gateway(patience=Patience(first_s=0.01))
    client = gateway.client(ModelSpec(name="tiny", base_url=server.url, **({"capture": "auto"} | spec)), log.emit,
                            seed=5, put=log.blobs.put)
    try:
        for request in requests:
            await client.call(request)
    finally:
        await gateway.close()


async def test_a_captured_call_is_what_the_server_generated(tmp_path: Path) -> None:
    """Ids, logprobs, the level and the sampler that was sent stand in the result; the endpoint was probed once."""
    log = Log(tmp_path)
    with tokens_served(says("x" * 600)) as server:
        await asked(server, log, ASK, ASK, sampling=Sampling(top_p=0.9))
    assert len(server.log) == 3
    first, second = log.of(EventKind.MODEL_RESULT)
    assert list(first)[:2] == ["call", "capture_level"]
    assert first["capture_level"] == "tokens+logprobs"
    assert first["sampling"] == {"temperature": 1.0, "top_p": 0.9, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
                                 "max_tokens": 2048, "seed": 5}
    assert "blob" in first["tokens"]["completion"]
    assert second["tokens"]["prompt"]["of"] == first["call"]
    records = log.calls().records
    assert [record.prompt_token_ids for record in records] == [one.prompt for one in server.log[1:]]
    assert [record.completion_token_ids for record in records] == [one.completion for one in server.log[1:]]
    assert [record.logprobs for record in records] == [one.logprobs for one in server.log[1:]]
    assert [record.sampling["seed"] for record in records] == [5, 6]
    assert made(log.calls()).trainable


async def test_what_is_not_captured_pays_nothing(tmp_path: Path) -> None:
    """By default there is no probe, no field is added, nothing more stands in the record, and nothing is waited for."""
    log, waited = Log(tmp_path), list[str]()

    async def settled() -> None:
        waited.append("settled")

    with tokens_served(says("hi")) as server:
        await asked(server, log, ASK, capture="off")
        [sent] = [one.body for one in server.log]
        gateway = Gateway()
        await gateway.client(ModelSpec(name="tiny", base_url=server.url), log.emit, settled=settled).call(ASK)
        await gateway.close()
    assert set(sent) == {"model", "messages", "max_tokens", "seed", "stream"}
    assert set(log.of(EventKind.MODEL_RESULT)[0]) == {"call", "content", "tool_calls", "finish_reason", "seconds",
                                                      "usage"}
    assert waited == ["settled"]  # whoever gives it is waited for


async def test_an_answer_is_durable_before_anybody_has_it(tmp_path: Path) -> None:
    """``settled`` is awaited once, with the result in the log; where it fails there is no answer."""
    log, seen = Log(tmp_path), list[list[EventKind]]()

    async def settled() -> None:
        seen.append([event.kind for event in log.events])
        if len(seen) > 1:
            raise StoreFault("the disk is full")

    with tokens_served(says("hi")) as server:
        gateway = Gateway()
        client = gateway.client(ModelSpec(name="tiny", base_url=server.url, capture="auto"), log.emit, settled=settled)
        await client.call(ASK)
        with pytest.raises(StoreFault):
            await client.call(ASK)
        await gateway.close()
    assert seen[0] == [EventKind.MODEL_CALL, EventKind.MODEL_RESULT]


@pytest.mark.parametrize(("told", "word"), [
    ({"usage": {"prompt_tokens": 3, "completion_tokens": 1}}, "the server counted 3"),
    ({"prompt_token_ids": None}, "were told when the endpoint was probed, and now text"),
    ({"choices": [{"message": {"content": "hi"}, "token_ids": [1, 2], "logprobs": {"content": [{"logprob": 0.5},
                                                                                               {"logprob": -1}]}}]},
     "zero or less"),
], ids=["count", "none", "logprob"])
async def test_an_answer_that_does_not_fit_is_loud(tmp_path: Path, told: dict[str, Any], word: str) -> None:
    """It is a note and a flaw, its level is text, the attempt goes on, and the rollout is untrainable, with why."""
    log = Log(tmp_path)
    with tokens_served(says("hi")) as server:
        gateway = Gateway()
        spec = ModelSpec(name="tiny", base_url=server.url, capture="vllm")
        assert [one.found for one in (await gateway.probe(spec)).values()] == [CaptureLevel.LOGPROBS]  # type: ignore[union-attr]  # no fault
        client = gateway.client(spec, log.emit, put=log.blobs.put)
        await client.call(ASK)
        server.told = told
        assert (await client.call(ASK)).content == "hi"
        server.told = {}
        await client.call(ASK)
        await gateway.close()
    assert [one["capture_level"] for one in log.of(EventKind.MODEL_RESULT)] == [
        "tokens+logprobs", "text", "tokens+logprobs"]
    assert word in " ".join(log.of(EventKind.MODEL_RESULT)[1]["flaws"])
    [note] = log.of(EventKind.NOTE)
    assert "m00002 cannot be trained on" in note["text"]
    assert word in note["text"]
    found = made(log.calls())
    assert (found.trainable, found.rows, found.reward) == (False, (), 1.0)
    assert any("m00002" in reason and word in reason for reason in found.untrainable)


async def test_tokens_that_cannot_be_kept_are_lost_loudly(tmp_path: Path) -> None:
    """A blob that cannot be stored is a flaw of the call; the next call does not build upon it."""
    log = Log(tmp_path)
    fails = [True, True]

    def put(content: bytes) -> str:
        if fails:
            fails.pop()
            raise StoreFault("storing a blob: no space left")
        return log.blobs.put(content)

    with tokens_served(says("x" * 600)) as server:
        gateway = Gateway()
        client = gateway.client(ModelSpec(name="tiny", base_url=server.url, capture="auto"), log.emit, put=put)
        for _ in range(3):
            await client.call(ASK)
        await gateway.close()
    assert ["flaws" in one for one in log.of(EventKind.MODEL_RESULT)] == [True, True, False]
    assert log.calls().records[2].completion_token_ids == server.log[3].completion
    assert not made(log.calls()).trainable


async def test_a_version_of_the_weights_stands_in_each_record(tmp_path: Path) -> None:
    """What the server tells with its answer, also when it changes; else the operator's word, whatever is captured."""
    log = Log(tmp_path)
    with tokens_served(says("hi")) as server:
        gateway = Gateway()
        for capture in ("off", "auto"):
            spec = ModelSpec(name="tiny", base_url=server.url, capture=capture, policy_version="v1")
            await gateway.client(spec, log.emit).call(ASK)
        for version in ("v2", "v3"):
            server.told = {"weight_version": version}
            await gateway.client(spec, log.emit).call(ASK)
        await gateway.close()
    assert [one["tokens"]["policy_version"] for one in log.of(EventKind.MODEL_RESULT)] == ["v1", "v1", "v2", "v3"]
    assert ["capture_level" in one for one in log.of(EventKind.MODEL_RESULT)] == [False, True, True, True]


class LlamaShaped:
    """Tells of the prompt its text alone; ``/tokenize`` fails as often as it is told to, and so does its parser."""

    def __init__(self, failing: int = 0, unread: int = 0) -> None:
        self.failing, self.unread, self.tokenized, self.keys = failing, unread, 0, set[str]()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        app = web.Application()
        app.add_routes([web.get("/v1/models", self.models), web.post("/v1/chat/completions", self.complete),
                        web.post("/tokenize", self.tokenize)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        await runner.cleanup()

    async def models(self, request: web.Request) -> web.Response:
        self.keys.add(request.headers["Authorization"])
        return web.json_response({"data": [{"owned_by": "llamacpp"}]})

    async def complete(self, request: web.Request) -> web.Response:
        if self.unread and "tools" in await request.json():
            self.unread -= 1
            message = 'Failed to parse input at pos 12: <tool_call>\n{"name": oops'
            return web.json_response({"error": {"code": 500, "message": message, "type": "server_error"}}, status=500)
        return web.json_response({
            "choices": [{"message": {"content": "ls"}, "logprobs": {"content": [{"id": 7, "logprob": -0.5}]}}],
            "__verbose": {"tokens": [7], "prompt": "<s>hello"}, "usage": {"prompt_tokens": 2, "completion_tokens": 1}})

    async def tokenize(self, request: web.Request) -> web.Response:
        self.keys.add(request.headers["Authorization"])
        assert (await request.json())["content"] == "<s>hello"
        self.tokenized += 1
        if self.tokenized > 1 and self.failing:
            self.failing -= 1
            return web.Response(status=500, text="busy")
        return web.json_response({"tokens": [1, 2]})


@pytest.mark.parametrize(("failing", "level"), [(2, "tokens+logprobs"), (3, "text")])
async def test_the_prompts_ids_are_asked_for_until_they_come(
    tmp_path: Path, failing: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing tokenizer is asked again, with the key and from the server's root; the answer itself stands anyway."""
    monkeypatch.setenv("A_KEY", "sk-1")
    server, log, gateway = LlamaShaped(failing), Log(tmp_path), Gateway(patience=Patience(first_s=0.001))
    async with server.served() as url:
        spec = ModelSpec(name="m", base_url=url, capture="auto", key_variable="A_KEY")
        assert (await gateway.client(spec, log.emit).call(ASK)).content == "ls"
        await gateway.close()
    assert log.of(EventKind.MODEL_RESULT)[0]["capture_level"] == level
    assert server.keys == {"Bearer sk-1"}
    assert ("could not be asked for" in str(log.of(EventKind.NOTE))) is (level == "text")


@pytest.mark.parametrize("unread", [0, 1])
async def test_an_answer_that_the_server_cannot_read_is_loud(
    tmp_path: Path, unread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp fails upon what its model wrote: the loop hears the words, and the rollout is untrainable, with why."""
    monkeypatch.setenv("A_KEY", "sk-1")
    server, log, gateway = LlamaShaped(unread=unread), Log(tmp_path), Gateway()
    ask = replace(ASK, tools=(ToolSpec("bash", "Run.", {"type": "object"}),))
    async with server.served() as url:
        client = gateway.client(ModelSpec(name="m", base_url=url, capture="auto", key_variable="A_KEY"), log.emit)
        said = [(await client.call(ask)).content for _ in range(2)]
        await gateway.close()
    found = made(log.calls())
    if not unread:
        assert (said, found.trainable, log.of(EventKind.NOTE)) == (["ls", "ls"], True, [])
        return
    assert said == ['<tool_call>\n{"name": oops', "ls"]
    assert [one["capture_level"] for one in log.of(EventKind.MODEL_RESULT)] == ["text", "tokens+logprobs"]
    assert "m00001 cannot be trained on: the server could not parse" in log.of(EventKind.NOTE)[0]["text"]
    assert (found.trainable, found.rows, found.reward) == (False, (), 1.0)
    assert any("m00001" in reason and "could not parse" in reason for reason in found.untrainable)


async def test_an_endpoint_in_the_other_shape_tells_no_ids() -> None:
    """One that ends in /responses is plain without being asked; a server's own way is refused there."""
    gateway = Gateway()
    spec = ModelSpec(name="m", base_url="http://127.0.0.1:9/v1/responses", capture="auto")
    [found] = (await gateway.probe(spec)).values()
    assert (found.name, found.found) == ("plain", CaptureLevel.TEXT)  # type: ignore[union-attr]  # no fault
    [refused] = (await gateway.probe(spec.model_copy(update={"capture": "vllm"}))).values()
    assert isinstance(refused, ModelRefused)
    await gateway.close()


def working(turns: int, size: int) -> Plays:
    """Lists numbers for some turns, then is done: long outputs, by which a small window is soon full."""

    def plays(messages: Sequence[Mapping[str, Any]], chance: random.Random) -> str:
        turn = sum(1 for message in messages if message["role"] == "assistant")
        thing = chance.choice(("the thing", "hello world", "one and another"))
        return thing + (call("bash", command=f"seq {chance.randrange(9)} {size}") if turns_left(messages, turns)
                              else call("finish", summary=thing, number=turn))

    return plays


def turns_left(messages: Sequence[Mapping[str, Any]], turns: int) -> bool:
    """Whether fewer than ``turns`` commands were run, those that a summary tells of included."""
    return json.dumps(messages).count("seq ") < turns


async def test_our_loop_with_compaction_learns_each_sampled_id_once(tmp_path: Path) -> None:
    """Its history is made smaller again and again, answers are lost: rows hold exactly what the server generated."""
    log = Log(tmp_path)
    with tokens_served(working(24, 500), lost=0.2) as server:
        gateway = Gateway(patience=Patience(first_s=0.001, longest_s=0.01))
        spec = ModelSpec(name="tiny", base_url=server.url, capture="auto", context_tokens=12000,
                         sampling=Sampling(max_tokens=500))
        agent = Agent(name="a", harness="loop", model=spec, limits=AgentLimits(turns=14))
        await gateway.probe(spec)
        probes = len(server.log)
        await Loop().act(Acting(
            task=a_task(tmp_path), agent=agent, sandbox=LocalBox(tmp_path / "box"), emit=log.emit, seed=0,
            model=gateway.client(spec, log.emit, put=log.blobs.put), deadline_s=60.0, blobs=log.blobs))
        await gateway.close()
    truth = [one for one in server.log[probes:] if one.delivered]
    assert len(truth) < len(server.log) - probes
    assert log.of(EventKind.COMPACTION)
    calls = log.calls()
    found = made(calls)
    assert (found.trainable, len(calls.records)) == (True, len(truth))
    assert learnt(found, calls) == generated(truth)
    assert set(found.drift) >= {"begun", "clean"}
    assert len(found.rows) > 1


@dataclass
class Captured(World):
    """A fine attempt whose model tells tokens."""

    tokens: TokenServer = field(default_factory=lambda: TokenServer(says("")))

    async def answer(self, request: web.Request) -> web.Response:
        """As the script says, generated by a server that tells its tokens."""
        body = await request.json()
        content, _ = self.tokens.answer(body)
        return web.Response(body=content, content_type="application/json")


@pytest.mark.parametrize("cuts", [[3], [4], [7, 2], [9, 5, 8]], ids=["intent", "result", "twice", "thrice"])
async def test_an_attempt_that_goes_on_loses_and_doubles_no_tokens(tmp_path: Path, cuts: list[int]) -> None:
    """Wherever executions of a fine attempt are cut off, the whole attempt's record holds each answered call once."""
    def plays(messages: Sequence[Mapping[str, Any]], chance: random.Random) -> str:
        turn = sum(message["role"] == "assistant" for message in messages)
        return f"turn {turn}" + (call("write_file", path="x", content="on and on " * 60) if turn < 4
                                  else call("finish", summary="all done"))

    world = Captured(tmp_path, (), CheckpointRule(turns=1), capture="vllm", tokens=TokenServer(plays))
    await world.run(cuts)
    assert world.execution > 1
    calls = calls_of(joined(world.events, world.execution), reader(world.blobs),
                     vocabulary=VOCABULARY)
    found = made(calls, world.execution)
    by = {(one.prompt, one.completion) for one in world.tokens.log}
    assert found.trainable, found.untrainable
    assert [record.call for record in calls.records] == [f"m{number:05d}" for number in range(1, 7)]
    assert {(record.prompt_token_ids, record.completion_token_ids) for record in calls.records} <= by
    ids = learnt(found, calls)
    assert ids == [one for record in calls.records for one in record.completion_token_ids or ()]
    assert ids.count(END) == 6


async def test_a_branch_learns_its_own_ids_alone(tmp_path: Path) -> None:
    """The calls that a fork inherits are context, their tokens read through the branch's own record."""
    parent, branch = Log(tmp_path), Log(tmp_path)
    talk = [Message(role="user", content="on and on " * 90)]
    with tokens_served(says("the thing " * 40)) as server:
        gateway = Gateway()
        spec = ModelSpec(name="tiny", base_url=server.url, capture="auto")
        client = gateway.client(spec, parent.emit, put=parent.blobs.put)
        for _ in range(2):
            answer = await client.call(ModelRequest(messages=tuple(talk)))
            talk += [Message(role="assistant", content=answer.content), Message(role="user", content="more")]
        for kind, data in inherited(parent.events, "a"):
            branch.emit(kind, data)
        again = gateway.client(spec, branch.emit, put=branch.blobs.put,
                               past=[Answer(call=f"m0000{number}", content="x") for number in (1, 2)])
        for until in (1, 3, 5):
            await again.call(ModelRequest(messages=tuple(talk[:until])))
        await gateway.close()
    calls = branch.calls()
    assert [record.inherited for record in calls.records] == [True, True, False]
    assert [record.completion_token_ids for record in calls.records] == [one.completion for one in server.log[1:]]
    found = made(calls)
    assert found.trainable, found.untrainable
    ids = [one for row in found.rows for one, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
    assert ids == list(server.log[3].completion)


async def test_conversations_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    """Calls of helpers and of the main conversation, many at once: each is read back as it was generated."""
    log = Log(tmp_path)
    with tokens_served(lambda messages, chance: " the thing" * chance.randrange(1, 200)) as server:
        gateway = Gateway()
        client = gateway.client(ModelSpec(name="tiny", base_url=server.url, capture="auto"), log.emit,
                                put=log.blobs.put)

        async def talking(parent: str | None) -> None:
            talk = [Message(role="user", content=f"{parent} " * 60)]
            for _ in range(3):
                answer = await client.call(ModelRequest(messages=tuple(talk), parent=parent))
                talk += [Message(role="assistant", content=answer.content), Message(role="user", content="more")]

        await asyncio.gather(*(talking(parent) for parent in (None, "t1", "t2", None, "t1")))
        await gateway.close()
    truth = {one.seed: one for one in server.log}
    calls = log.calls()
    assert len(calls.records) == 15
    for record in calls.records:
        one = truth[record.sampling["seed"]]
        assert (record.prompt_token_ids, record.completion_token_ids) == (one.prompt, one.completion)
    found = made(calls)
    assert found.trainable, found.untrainable
    assert {row.parent for row in found.rows} == {None, "t1", "t2"}
    assert learnt(found, calls) == [one for record in calls.records for one in record.completion_token_ids or ()]
