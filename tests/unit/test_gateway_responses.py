"""The responses shape as a client: what is sent, what is read, and the loop over it by real HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from localbox import LocalBox
from scripted import a_task
from woodshed.errors import ModelGarbled
from woodshed.gateway import responses
from woodshed.gateway.call import Patience
from woodshed.gateway.client import Gateway
from woodshed.harness.loop import Loop
from woodshed.interfaces import Acting, ModelRequest, ToolSpec
from woodshed.model import Agent, Message, ModelSpec, Sampling, StopReason, ToolCall

SPEC = ModelSpec(name="m", base_url="http://x/v1/responses/",
                 sampling=Sampling(temperature=0.5, max_tokens=100, seed=7))
CALL = ToolCall(id="c1", name="bash", arguments={"command": "echo é"})


def output(*items: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"status": "completed", "output": list(items),
                       "usage": {"input_tokens": 11, "output_tokens": 3}, **more}).encode()


def called(name: str, arguments: str, call: str = "call_1") -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": call, "name": name, "arguments": arguments}


def test_a_conversation_is_items() -> None:
    """Messages, calls and results are items of their kinds; tools are flat and say whether they are strict."""
    request = ModelRequest(messages=(
        Message(role="system", content="S"), Message(role="user", content="U"),
        Message(role="assistant", content="I look.", tool_calls=(CALL,)),
        Message(role="tool", content="é", call="c1")), tools=(ToolSpec("bash", "Runs.", {"type": "object"}),),
        max_tokens=50)
    body = responses.body(request, SPEC, 1)
    assert body == {
        "model": "m", "store": False, "stream": False, "temperature": 0.5, "max_output_tokens": 50,
        "input": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
                  {"role": "assistant", "content": "I look."},
                  {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"command": "echo é"}'},
                  {"type": "function_call_output", "call_id": "c1", "output": "é"}],
        "tools": [{"type": "function", "name": "bash", "description": "Runs.", "parameters": {"type": "object"},
                   "strict": False}]}
    assert responses.meant(SPEC)
    assert not responses.meant(SPEC.model_copy(update={"base_url": "http://x/v1"}))


def test_an_answer_has_words_and_parallel_calls() -> None:
    """Reasoning is left out, calls keep their ids and order, usage is counted."""
    answer = responses.answer(output(
        {"type": "reasoning", "summary": []},
        {"type": "message", "content": [{"type": "output_text", "text": "Look."}]},
        called("bash", '{"command": "a"}', "x"), called("bash", '{"command": }', "y")), 0.5)
    assert (answer.content, answer.finish_reason) == ("Look.", "tool_calls")
    assert [(call.id, call.arguments) for call in answer.tool_calls] == [("x", {"command": "a"}), ("y", {})]
    assert answer.tool_calls[1].error is not None
    assert (answer.prompt_tokens, answer.completion_tokens) == (11, 3)
    cut = responses.answer(output(status="incomplete", incomplete_details={"reason": "max_output_tokens"}), 0.0)
    assert cut.finish_reason == "length"


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"output": 1}', b'{"output": [1]}', b"[" * 100_000,
                                     output(status="failed", error={"message": "no"}),
                                     output({"type": "message", "content": 5})])
def test_what_is_no_response_is_garbled(payload: bytes) -> None:
    """Anything but the protocol is the endpoint's fault, and says so."""
    with pytest.raises(ModelGarbled):
        responses.answer(payload, 0.0)


async def test_the_loop_works_over_responses(tmp_path: Path) -> None:
    """An endpoint whose address ends in /responses is asked in that shape, and its calls are carried out."""
    answers = [output(called("bash", '{"command": "echo 5 > a"}'), called("bash", '{"command": "cat a"}', "call_2")),
               output(called("finish", '{"summary": "Done.", "command": "cat a", "exit_code": 0}'))]
    asked: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.Response(body=answers[len(asked) - 1], content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/responses", answer)
    runner, gateway = web.AppRunner(app), Gateway(patience=Patience(tries=1))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        spec = ModelSpec(name="m", base_url=f"http://127.0.0.1:{runner.addresses[0][1]}/v1/responses")
        acting = Acting(task=a_task(tmp_path), agent=Agent(name="a", harness="loop", model=spec),
                        sandbox=LocalBox(tmp_path / "box"), emit=lambda kind, data: None, seed=0, deadline_s=60.0,
                        model=gateway.client(spec, lambda kind, data: None))
        assert await Loop().act(acting) is StopReason.FINISHED
    finally:
        await gateway.close()
        await runner.cleanup()
    results = [item["output"] for item in asked[1]["input"] if item.get("type") == "function_call_output"]
    assert [result.strip() for result in results] == ["[no output]", "5"]
