"""The tiny model: its text, its template, its network and its server tell the truth about what was sampled."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny.babble import answered, babbled
from tiny.template import answer, prompt
from tiny.text import CALL, END, Vocabulary

from woodshed.gateway.capture.vllm import FIELDS, read
from woodshed.model.tokens import flaws
from woodshed.tasks.families import Split, instances, named

TORCH = "needs torch: pip install --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu"
WORDS = Vocabulary.of(["write the word `amber` into `notes.txt` command path content bash write_file"] * 2, size=300)
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"properties": {
    key: {"type": kind} for key, kind in given.items()}}}} for name, given in
    {"bash": {"command": "string", "timeout_s": "number"}, "write_file": {"path": "string", "content": "string"},
     "finish": {}}.items()]


@given(st.text())
def test_text_is_never_lost_and_never_a_mark(text: str) -> None:
    """Ids give back the text they were made from, and none of them is a mark of the conversation."""
    ids = WORDS.encode(text)
    assert WORDS.decode(ids) == text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    assert all(one > CALL for one in ids)


@given(st.lists(st.tuples(st.sampled_from(["bash", "write_file", "nobody"]),
                          st.dictionaries(st.sampled_from(["command", "path", "content"]), st.text())),
                min_size=1, max_size=3))
def test_a_conversation_goes_on_with_exactly_what_was_sampled(calls: list[tuple[str, dict[str, str]]]) -> None:
    """Calls as the model writes them, read, and sent back by whoever asked: the prompt begins with the same ids."""
    said = {"role": "assistant", "content": "", "tool_calls": [
        {"id": "x", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for name, given in calls]}
    begun = [{"role": "system", "content": "s"}, {"role": "user", "content": "Write the word `amber`."}]
    before = prompt(WORDS, begun, TOOLS)
    sampled = prompt(WORDS, [*begun, said], TOOLS)[len(before):-1]
    read_ = answer(WORDS, sampled, TOOLS)
    read_calls = [one["function"] for one in read_["tool_calls"]]
    assert [(one["name"], json.loads(one["arguments"])) for one in read_calls] == calls
    after = prompt(WORDS, [*begun, read_, {"role": "tool", "content": "Wrote it."}], TOOLS)
    assert after[: len(before) + len(sampled)] == [*before, *sampled]


@given(st.lists(st.integers(0, len(WORDS) - 1), max_size=20))
def test_whatever_is_sampled_is_an_answer(ids: list[int]) -> None:
    """Any ids are calls or text; what is no well-formed call is text that says what it was."""
    said = answer(WORDS, ids, TOOLS)
    assert said.get("tool_calls") or isinstance(said["content"], str)
    if END in ids[:-1]:
        assert not said.get("tool_calls")
    json.dumps(said)


def test_babble_is_well_formed_and_a_demonstration_does_the_task() -> None:
    """Calls have their tools' arguments; a demonstration is the calls of its task, a look, and the end."""
    needed = {"bash": {"command"}, "read_file": {"path"}, "write_file": {"path", "content"}, "search": {"pattern"},
              "edit_file": {"path", "old", "new"}, "finish": set()}
    for one in instances(named("first-commands"), Split.TRAIN, count=20, seed=5):
        talk: list[dict[str, Any]] = [{"role": "user", "content": one.exercise.instruction + "\n"}]
        known = {one.exercise.instruction: one.exercise.calls}
        shown = []
        for seed in range(6):
            name, arguments = babbled(talk, random.Random(seed))
            assert set(arguments) == needed[name]
            shown.append(answered(talk, 40 + seed, known, (1.0, 1.0)))
            talk.append({"role": "assistant", "content": ""})
        assert shown[: len(one.exercise.calls)] == [(name, dict(given)) for name, given in one.exercise.calls]
        assert shown[len(one.exercise.calls)][0] == "bash"
        assert shown[-1] == ("finish", {})


@pytest.fixture(scope="module")
def network() -> Any:
    """A random network."""
    torch = pytest.importorskip("torch", reason=TORCH)
    from tiny.network import Network, Shape

    torch.manual_seed(0)
    torch.set_num_threads(1)
    return Network(Shape(len(WORDS), width=32, layers=2, heads=2, context=96))


def test_going_on_is_the_same_as_beginning_anew(network: Any) -> None:
    """Logprobs with what was kept of a sequence are those of the whole of it, in any slot, at once with others."""
    torch = pytest.importorskip("torch", reason=TORCH)
    from tiny.network import Past

    ids = torch.randint(0, len(WORDS), (3, 20))
    whole = network(ids).view(3, 20, -1).detach()
    assert torch.allclose(whole.exp().sum(-1), torch.ones(3, 20), atol=1e-4)
    past, slots, lengths = Past(network.shape, 5), torch.tensor([4, 0, 2]), torch.tensor([20, 7, 12])
    told = network.further(ids, torch.zeros(3, dtype=torch.long), lengths, slots, past)
    assert torch.allclose(told, whole[torch.arange(3), lengths - 1], atol=1e-4)
    more = network.further(ids[1:2, 7:11], torch.tensor([7]), torch.tensor([4]), slots[1:2], past)
    assert torch.allclose(more[0], whole[1, 10], atol=1e-4)


async def test_the_server_tells_what_it_sampled_and_takes_new_weights(network: Any, tmp_path: Path) -> None:
    """Many at once, as the gateway asks a vLLM: ids and logprobs are the network's; versions change between answers."""
    torch = pytest.importorskip("torch", reason=TORCH)
    from tiny.engine import Engine
    from tiny.network import Network
    from tiny.server import Server, load, save, served

    save(network, WORDS, tmp_path)
    copy, words = load(tmp_path)
    assert words == WORDS
    other = Network(network.shape)
    torch.save(other.state_dict(), tmp_path / "other.pt")
    messages = [{"role": "user", "content": "Write the word `amber` into `notes.txt`."}]

    async with served(Server(Engine(copy, version="3", slots=3), words)) as url, aiohttp.ClientSession() as session:
        async def asked(route: str, **body: Any) -> dict[str, Any]:
            async with session.post(url.removesuffix("/v1") + route, json=body) as told:
                return {**await told.json(), "status": told.status}

        async def chat(seed: int, **more: Any) -> dict[str, Any]:
            return await asked("/v1/chat/completions", model="tiny", messages=messages, tools=TOOLS, seed=seed,
                               **{"max_tokens": 9, "temperature": 1.0, **FIELDS, **more})

        answers = await asyncio.gather(*(chat(seed) for seed in range(8)))
        for told in answers:
            _truth(network, told, "3")
        assert (await chat(2))["choices"][0]["token_ids"] == answers[2]["choices"][0]["token_ids"]
        assert len({tuple(told["choices"][0]["token_ids"]) for told in answers}) > 1
        swap = await asyncio.gather(chat(9), asked("/load_weights", path=str(tmp_path / "other.pt"), version="4"))
        assert swap[1]["weight_version"] == "4"
        _truth(other, await chat(10), "4")
        asked_ids = await asked("/tokenize", messages=messages, tools=TOOLS)
        assert tuple(asked_ids["tokens"]) == read(answers[0]).prompt
        refused = [await chat(0, top_k=5), await asked("/load_weights", path=str(tmp_path / "model.json"), version="5"),
                   await asked("/v1/completions", prompt="a" * 200)]
        assert [one["status"] for one in refused] == [400, 400, 400]
        whole = await asked("/v1/completions", prompt="amber", max_tokens=3, temperature=0, logprobs=1, **{
            key: value for key, value in FIELDS.items() if key != "logprobs"})
        assert whole["usage"]["completion_tokens"] == len(whole["choices"][0]["token_ids"])


async def test_who_asks_and_goes_away_takes_nobody_along(network: Any) -> None:
    """Answers that nobody waits for any more, and a batch that fails, leave an engine that answers the next prompt;

    closed, it leaves nobody waiting, and tells so to whoever asks.
    """
    pytest.importorskip("torch", reason=TORCH)
    from tiny.engine import Asked, Engine

    engine = Engine(network, slots=2)
    try:
        gone = [asyncio.wrap_future(engine.ask(Asked((CALL, END), 40, seed=seed))) for seed in range(6)]
        for one in gone:
            one.cancel()
        bad = engine.ask(Asked((CALL, len(WORDS) + 7), 4))  # no such id: the batch that holds it fails
        with pytest.raises(IndexError):
            await asyncio.wrap_future(bad)
        given_ = await asyncio.wait_for(asyncio.wrap_future(engine.ask(Asked((CALL, END), 4))), 60)
        assert 1 <= len(given_.ids) <= 4
    finally:
        waiting = [engine.ask(Asked((CALL, END), 100, seed=seed)) for seed in range(9)]
        engine.close()
    assert all(str(one.exception(60) or "closed").endswith("closed") for one in waiting)
    with pytest.raises(RuntimeError, match="closed"):
        engine.ask(Asked((CALL, END), 4))


def _truth(network: Any, told: dict[str, Any], version: str) -> None:
    """What an answer tells of its ids is what ``network`` makes of them."""
    torch = pytest.importorskip("torch", reason=TORCH)
    tokens, usage = read(told), told["usage"]
    assert not flaws(tokens, vocabulary=len(WORDS), prompt_tokens=usage["prompt_tokens"],
                     completion_tokens=usage["completion_tokens"])
    assert tokens.prompt
    assert tokens.completion
    assert tokens.policy_version == version
    logprobs = network(torch.tensor([tokens.whole[:-1]])).detach()
    own = logprobs[range(len(tokens.prompt) - 1, len(tokens.whole) - 1), list(tokens.completion)]
    assert own.tolist() == pytest.approx(list(tokens.logprobs or ()), abs=1e-3)
