"""What a model thinks goes back to it, into its token rows and exports, and is the first to go where room is short."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from resumable import Turn, World
from scripted import act, said
from tokenserver import END, VOCABULARY, call, encoded, rendered
from woodshed.gateway import responses
from woodshed.gateway.recall import recalled
from woodshed.harness.loop import Loop
from woodshed.interfaces import ModelRequest, ModelResponse
from woodshed.measure.resume import joined
from woodshed.measure.trajectory import from_events
from woodshed.model import Answer, CheckpointRule, EventKind, Message, ModelSpec
from woodshed.model.agent import Reasoning
from woodshed.model.rollout import CallRecord
from woodshed.trainers.atif import to_atif
from woodshed.trainers.chat import answered, asked, whole
from woodshed.trainers.records import calls_of
from woodshed.trainers.secrets import Masker
from woodshed.trainers.stitch import stitch

TURNS: list[Turn] = [(("bash", {"command": f"echo {word} >>log"}),) for word in ("one", "two", "three")]
KEY = "ghp_" + "a1B2" * 9


def template(messages: list[dict[str, Any]], thought: str) -> list[int]:
    """Ids of a prompt by a template that keeps thoughts, in the manner of MiniMax's and, between calls, of Qwen3's."""
    return rendered([
        {**one, "content": f"<think>\n{one[thought]}\n</think>\n\n{one.get('content') or ''}"}
        if one.get(thought) else one for one in messages])


@dataclass
class Thinker(World):
    """A server in vLLM's shape, whose model thinks before each call; ``thought`` is the field that it has for that."""

    thought: str = "reasoning"
    prompts: list[list[int]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        messages = body["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        if messages[0]["role"] == "system":  # not the question of the probe
            self.asked[turn] += 1
            self.requests.append(body)
        thinks = f"step {turn}: I know {KEY}"
        done = turn >= len(self.turns)
        calls = (("finish", {"summary": "all done"}),) if done else self.turns[turn]
        text = f"<think>\n{thinks}\n</think>\n\n" + "".join(call(name, **given) for name, given in calls)
        prompt, completion = template(messages, self.thought), [*encoded(text), END]
        answer = said("", *calls)
        answer["choices"][0]["message"] |= {self.thought: thinks, "content": None}
        answer["choices"][0] |= {"token_ids": completion,
                                 "logprobs": {"content": [{"token": "", "logprob": -0.5}] * len(completion)}}
        answer |= {"prompt_token_ids": prompt,
                   "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(completion)}}
        return web.json_response(answer)

    def records(self) -> tuple[CallRecord, ...]:
        found = calls_of(joined(self.events, self.execution), self.open, vocabulary=VOCABULARY)
        assert not found.lost
        assert not any(record.flaws for record in found.records)
        return found.records

    def open(self, sha256: str) -> bytes:
        with self.blobs.open(sha256) as file:
            return file.read()


def thinker(folder: Path, **how: Any) -> Thinker:
    return Thinker(folder, TURNS, CheckpointRule(turns=2), capture="vllm", **how)


@pytest.mark.parametrize("thought", ["reasoning", "reasoning_content"])
async def test_thoughts_go_back_in_the_servers_own_field(tmp_path: Path, thought: str) -> None:
    """Every later call has all earlier thoughts where the server told them, and the token rows are one."""
    world = thinker(tmp_path, thought=thought)
    await world.run([])
    last = [one for one in world.requests[-1]["messages"] if one["role"] == "assistant"]
    assert [one[thought] for one in last] == [f"step {number}: I know {KEY}" for number in range(4)]
    assert all(len({"reasoning", "reasoning_content"} & one.keys()) == 1 for one in last)
    made = stitch(world.records())
    assert [len(made.rows), made.drift.get("clean")] == [1, 4]


async def test_thoughts_that_are_dropped_fork_the_rows(tmp_path: Path) -> None:
    """Where the agent says that thoughts do not go back, none does, and each call is a row of its own."""
    rule: Reasoning = "drop"
    world = thinker(tmp_path, reasoning=rule)
    await world.run([])
    assert not any({"reasoning", "reasoning_content"} & one.keys()
                   for request in world.requests for one in request["messages"])
    records = world.records()
    assert len(stitch(records).rows) == len(records) == 5
    talk = whole(records)
    assert talk is not None
    assert [one["reasoning_content"] for one in talk if one["role"] == "assistant"] == [
        f"step {number}: I know {KEY}" for number in range(5)]


async def test_a_resumed_attempt_has_its_thoughts(tmp_path: Path) -> None:
    """After a kill the conversation goes on with what was thought before, and its rows are still one."""
    calm = thinker(tmp_path / "calm")
    calm.folder.mkdir()
    await calm.run([])
    cut = [event.seq for event in calm.events if event.kind is EventKind.TOOL_CALL][2]
    world = thinker(tmp_path)
    await world.run([cut])
    assert world.execution == 2

    def thoughts(of: Thinker) -> list[str]:
        return [one["reasoning"] for one in of.requests[-1]["messages"] if one["role"] == "assistant"]

    assert thoughts(world) == thoughts(calm)
    assert len(stitch(world.records()).rows) == 1


async def test_thoughts_are_recorded_exported_and_masked(tmp_path: Path) -> None:
    """Records, SFT's messages and ATIF have them as ``reasoning_content``; a secret in them is masked."""
    world = thinker(tmp_path)
    await world.run([])
    first, *_, last = world.records()
    assert answered(first)["reasoning_content"] == f"step 0: I know {KEY}"
    assert [one["reasoning_content"] for one in asked(last) if one["role"] == "assistant"] == [
        f"step {number}: I know {KEY}" for number in range(4)]
    trajectory = from_events(joined(world.events, 1), task="t", agent="a")
    masker = Masker({})
    document = masker.masked(to_atif(trajectory))
    assert [one["reasoning_content"] for one in document["steps"] if one["source"] == "agent"] == [
        f"step {number}: I know [masked:github_token]" for number in range(5)]
    assert KEY not in json.dumps(masker.masked([asked(last), answered(last)]))


def test_a_recorded_answer_has_its_thoughts() -> None:
    """What a replay or fork is given in the place of an answer holds what was thought before it, as it was told."""
    known = recalled(Answer(call="m00001", content="ok", reasoning="hm"))
    assert isinstance(known, ModelResponse)
    assert (known.content, known.reasoning) == ("ok", "hm")


async def test_old_thoughts_are_the_first_to_go(tmp_path: Path) -> None:
    """Compaction leaves out the thoughts of old turns before any output, and keeps them within reach."""
    def thinks(number: int) -> dict[str, Any]:
        answer = said("", ("bash", {"command": f"echo {number}"}), tokens=0)
        answer["choices"][0]["message"]["reasoning_content"] = f"needle{number} " + "hmm, so. " * 120
        return answer

    read = said("", ("read_output", {"handle": "t0001", "find": "needle1"}), tokens=0)
    made = await act(Loop(), tmp_path, *(thinks(number) for number in range(1, 13)), read,
                     said("", ("finish", {"summary": "all done", "command": "echo 12", "exit_code": 0}), tokens=0),
                     context_tokens=6000)
    shrunk = made.of(EventKind.COMPACTION)
    assert shrunk[0]["thoughts"][0] == "t0001"
    assert not shrunk[0]["outputs"]
    assert not shrunk[0]["turns"]
    sent = [one.get("reasoning_content", "") for one in made.requests[12]["messages"] if one["role"] == "assistant"]
    assert sent[0] == ""
    assert sent[-1].startswith("needle12 hmm")
    assert "needle1 hmm" in made.results[12]


def test_thoughts_in_the_shape_of_responses() -> None:
    """A reasoning item's text, or its summary, is what was thought, and goes back as an item before the answer."""
    for told in ({"content": [{"type": "reasoning_text", "text": "hm"}], "summary": []},
                 {"summary": [{"type": "summary_text", "text": "hm"}]}):
        payload = json.dumps({"output": [{"type": "reasoning", "id": "r", **told}, {
            "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]}]})
        assert responses.answer(payload.encode(), 0.0).reasoning == "hm"
    request = ModelRequest([Message(role="user", content="?"), Message(role="assistant", content="ok", reasoning="hm")])
    items = responses.body(request, ModelSpec(name="m", base_url="http://127.0.0.1/v1/responses"), 1)["input"]
    assert [one.get("type", one.get("role")) for one in items] == ["user", "reasoning", "assistant"]
    assert items[1]["content"][0]["text"] == "hm"
