"""Raw completions as a client: what is sent, what is read, and the loop over it by real HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from localbox import LocalBox
from scripted import a_task
from woodshed.errors import ModelGarbled, ModelRefused, UsageError
from woodshed.gateway import completions
from woodshed.gateway.call import Patience
from woodshed.gateway.client import Gateway
from woodshed.harness.dialects.chats import CHATS
from woodshed.harness.loop import Loop
from woodshed.interfaces import Acting, ModelRequest, ModelResponse, ToolSpec
from woodshed.model import Agent, EventKind, Message, ModelSpec, Sampling, StopReason
from woodshed.services import agents

SPEC = ModelSpec(name="m", base_url="http://x/v1/completions/",
                 sampling=Sampling(temperature=0.5, max_tokens=100, seed=7))
HERMES = CHATS["hermes"]
ASKED = ModelRequest(messages=(Message(role="system", content="S"), Message(role="user", content="U")),
                     tools=(ToolSpec("bash", "Runs.", {"type": "object"}),), max_tokens=50, chat=HERMES)


def continued(text: str, finish: str = "stop", **more: Any) -> bytes:
    return json.dumps({"choices": [{"text": text, "finish_reason": finish}],
                       "usage": {"prompt_tokens": 11, "completion_tokens": 3}, **more}).encode()


def test_a_conversation_is_one_text() -> None:
    """The prompt is the format's, with its ends as stop words and its marks to be told; there are no messages."""
    body = completions.body(ASKED, SPEC, 1)
    assert body == {
        "model": "m", "prompt": HERMES.prompt(ASKED.messages, ASKED.tools), "max_tokens": 50, "seed": 7,
        "temperature": 0.5, "stop": ["<|im_end|>", "<|endoftext|>"], "skip_special_tokens": False,
        "preserved_tokens": list(HERMES.marks), "stream": False}
    assert body["prompt"].endswith("<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n")
    assert completions.meant(SPEC)
    for other in ("http://x/v1", "http://x/v1/chat/completions", "http://x/v1/responses"):
        assert not completions.meant(SPEC.model_copy(update={"base_url": other}))


def test_without_a_format_nothing_is_guessed() -> None:
    """A request that does not say how it is written is refused, whatever the model is called."""
    with pytest.raises(ModelRefused, match="dialect"):
        completions.body(replace(ASKED, chat=None), SPEC, 1)


def test_an_answer_has_what_was_begun_for_it_and_no_end() -> None:
    """The text, behind what the format opened; a mark that ended it is cut off; usage is counted."""
    answer = completions.answer(continued("Hm.</think>Yes.<｜end▁of▁sentence｜>"), 0.5, chat=CHATS["deepseek-v3.2"])
    assert (answer.content, answer.finish_reason) == ("<think>Hm.</think>Yes.", "stop")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.tool_calls) == (11, 3, ())
    assert completions.answer(continued("x", "length"), 0.0, chat=HERMES).finish_reason == "length"


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"text": 1}]}',
                                     b'{"choices": [{"message": {"content": "x"}}]}', b"[" * 100_000])
def test_what_is_no_completion_is_garbled(payload: bytes) -> None:
    """Anything but the protocol is the endpoint's fault, and says so."""
    with pytest.raises(ModelGarbled):
        completions.answer(payload, 0.0, chat=HERMES)


def test_agents_are_refused_before_anything_runs() -> None:
    """An endpoint of text needs a dialect that says how; programs of others need another endpoint."""
    with pytest.raises(UsageError, match="does not say how"):
        agents.build(["loop"], SPEC)
    with pytest.raises(UsageError, match="takes text"):
        agents.build(["external:mini-swe-agent"], SPEC, dialect="hermes")
    with pytest.raises(UsageError, match="raw completions"):
        agents.build(["loop"], SPEC.model_copy(update={"base_url": "http://x/v1"}), dialect="text:hermes")
    assert agents.build(["loop"], SPEC, dialect="text:hermes")[0].dialect == "text:hermes"


@asynccontextmanager
async def continuing(answers: Sequence[bytes], asked: list[dict[str, Any]]) -> AsyncIterator[str]:
    """The address of a server that continues texts with ``answers``, the last one again and again."""

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.Response(body=answers[min(len(asked), len(answers)) - 1], content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/completions"
    finally:
        await runner.cleanup()


class Masking:
    """An interceptor that writes anew what tools answered."""

    async def before(self, request: ModelRequest) -> ModelRequest:
        return replace(request, messages=tuple(
            one.model_copy(update={"content": one.content.replace("secret", "MASK")}) if one.role == "tool" else one
            for one in request.messages))

    async def after(self, request: ModelRequest, response: ModelResponse) -> ModelResponse:
        return response


async def worked(folder: Path, dialect: str, *answers: bytes) -> tuple[StopReason, list[dict[str, Any]], list[Any]]:
    asked: list[dict[str, Any]] = []
    events: list[tuple[EventKind, Mapping[str, Any]]] = []
    gateway = Gateway([Masking()], patience=Patience(tries=1))
    async with continuing(answers, asked) as url:
        spec = ModelSpec(name="m", base_url=url)
        acting = Acting(task=a_task(folder), agent=Agent(name="a", harness="loop", model=spec, dialect=dialect),
                        sandbox=LocalBox(folder / "box"), emit=lambda kind, data: events.append((kind, data)), seed=0,
                        deadline_s=60.0, model=gateway.client(spec, lambda kind, data: events.append((kind, data))))
        try:
            return await Loop().act(acting), asked, events
        finally:
            await gateway.close()


async def test_the_loop_works_by_text_alone(tmp_path: Path) -> None:
    """Calls are read, carried out and answered in the family's format; each prompt begins with all before it."""
    call = '<tool_call>\n{"name": "bash", "arguments": {"command": "%s"}}\n</tool_call>'
    first, second = call % "echo 5 > a", f"{call % 'cat a'}\n{call % 'echo secret'}"
    end = '<tool_call>\n{"name": "finish", "arguments": {"summary": "Done."}}\n</tool_call>'
    stop, asked, events = await worked(tmp_path, "hermes", continued(first), continued(second), continued(end))
    assert stop is StopReason.FINISHED
    prompts = [one["prompt"] for one in asked]
    assert prompts[1].startswith(prompts[0] + first + "<|im_end|>")
    assert prompts[2].startswith(prompts[1] + second + "<|im_end|>")
    assert prompts[2].endswith("<|im_start|>user\n<tool_response>\n5\n</tool_response>\n<tool_response>\nMASK\n"
                               "</tool_response><|im_end|>\n<|im_start|>assistant\n")
    told, text = [data["prompt"] for kind, data in events if kind is EventKind.MODEL_CALL], ""
    for sent, kept in zip(prompts, told, strict=True):
        assert (text := text[:kept["kept"]] + kept["text"]) == sent
        assert kept["chat"] == "hermes"
    assert told[2]["kept"] > len(prompts[0])
    assert '"name": "bash"' in prompts[0]
    assert "Do it.<|im_end|>" in prompts[0]


@pytest.mark.parametrize(("server", "told"), [
    ("llama.cpp", {"__verbose": {"tokens": [5, 6], "prompt": "P"},
                   "logprobs": {"content": [{"id": 5, "logprob": -0.5}, {"id": 6, "logprob": -0.25}]}}),
    ("vllm", {"token_ids": [5, 6], "prompt_token_ids": [1, 2, 3],
              "logprobs": {"token_logprobs": [-0.5, -0.25], "tokens": ["a", "b"]}}),
])
async def test_token_ids_and_logprobs_are_captured(server: str, told: dict[str, Any]) -> None:
    """A captured call has the ids of the prompt and of what was sampled, as each server tells them of a text."""
    asked: list[tuple[str, Any]] = []
    outside = {name: told[name] for name in told if name == "__verbose"}
    answer = {"choices": [{"text": "ab", "finish_reason": "stop",
                           **{name: told[name] for name in told if name != "__verbose"}}],
              "usage": {"prompt_tokens": 3, "completion_tokens": 2}, **outside}

    async def serve(request: web.Request) -> web.Response:
        asked.append((request.path, await request.json()))
        return web.json_response({"tokens": [1, 2, 3]} if request.path == "/tokenize" else answer)

    app = web.Application()
    app.router.add_post("/{path:.*}", serve)
    runner, gateway = web.AppRunner(app), Gateway(patience=Patience(tries=1))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        spec = ModelSpec(name="m", base_url=f"http://127.0.0.1:{runner.addresses[0][1]}/v1/completions",
                         capture=server)
        response = await gateway.client(spec, lambda kind, data: None).call(ASKED)
    finally:
        await gateway.close()
        await runner.cleanup()
    tokens = response.tokens
    assert tokens is not None
    assert response.flaws == ()
    assert (tokens.prompt, tokens.completion, tokens.logprobs) == ((1, 2, 3), (5, 6), (-0.5, -0.25))
    assert {path for path, _ in asked} == {"/v1/completions", *(["/tokenize"] if server == "llama.cpp" else [])}
    assert all("messages" not in body for _, body in asked)


async def test_commands_in_fences_go_by_text_too(tmp_path: Path) -> None:
    """A model that was not taught a family's calls works in its chat format all the same."""
    stop, asked, _ = await worked(tmp_path, "text:hermes", continued("```bash\necho 5\n```"), continued("DONE"))
    assert stop is StopReason.FINISHED
    assert "Exit code: 0\nOutput:\n5" in asked[1]["prompt"]
    assert "# Tools" not in asked[0]["prompt"]
