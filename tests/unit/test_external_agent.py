"""Black-box agents in native sandboxes: traced as ours, bound by the attempt's limits, told apart when they break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from blackbox import AGENT, ANTHROPIC
from scripted import Attempt, a_task, act, bash, said
from woodshed.errors import HarnessFault, ModelRefused, ModelUnreachable, UsageError
from woodshed.harness.external import External, ExternalAgent
from woodshed.interfaces import Sandbox
from woodshed.model import EnvironmentSpec, EventKind, SandboxPolicy, StopReason
from woodshed.sandbox.native.engine import NativeEngine

COMMAND = ("python3", "/agent.py", "{instruction_file}")


@pytest.fixture
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    engine = NativeEngine(shed_home)
    yield engine
    await engine.close()


@pytest.fixture
async def box(engine: NativeEngine) -> Sandbox:
    return await furnished(engine)


async def furnished(engine: NativeEngine) -> Sandbox:
    box = await engine.create(EnvironmentSpec(), SandboxPolicy())
    await box.write("/agent.py", AGENT.encode())
    return box


def agent(*more: str, **fields: Any) -> External:
    return External(agent=ExternalAgent.parse(
        {"name": "box", "command": (*COMMAND, *more), "result_code": r"^exit code: (\d+)", **fields}))


async def test_an_agent_of_another_protocol_is_traced_as_any(engine: NativeEngine, tmp_path: Path) -> None:
    """One that speaks Anthropic's Messages finds its address and key, and its calls and results are known."""
    box = await furnished(engine)
    await box.write("/agent.py", ANTHROPIC.encode())
    done = await act(agent(), tmp_path, said("look", ("bash", {"command": "echo hi; exit 3"})), said("done"), box=box)
    assert done.stop is StopReason.FINISHED
    [result] = done.of(EventKind.TOOL_RESULT)
    assert (result["exit_code"], result["content"]) == (3, "exit code: 3\nhi\n")
    assert [call["asked"]["anthropic-version"] for call in done.of(EventKind.MODEL_CALL)] == ["2023-06-01"] * 2
    assert done.acting.usage.turns == 2


async def test_an_unknown_agent_is_traced_as_ours(box: Sandbox, tmp_path: Path) -> None:
    """Its words, calls and results stand in the record in their order, with what they used; its key does not."""
    task = a_task(tmp_path, instruction="Make 'it' so; $(rm -rf /) \"{key}\"\n")
    leak = bash("echo $OPENAI_API_KEY; env > keys; false")
    done = await act(agent(), tmp_path, leak, said("done"), box=box, task=task)
    assert done.stop is StopReason.FINISHED
    kinds = [event.kind.value for event in done.events]
    assert kinds == ["state", "message", "message", "model_call", "model_result", "tool_call", "tool_result",
                     "model_call", "model_result", "note"]
    assert done.of(EventKind.MESSAGE)[1]["content"] == task.instruction
    [result] = done.of(EventKind.TOOL_RESULT)
    assert (result["exit_code"], result["content"]) == (1, "exit code: 1\n***\n")
    [key] = [line.partition("=")[2] for line in (await box.read("/workspace/keys")).decode().splitlines()
             if line.startswith("OPENAI_API_KEY=")]
    assert len(key) >= 43
    assert key not in json.dumps([event.data for event in done.events])
    usage = done.acting.usage
    assert (usage.turns, usage.tool_calls, usage.prompt_tokens, usage.completion_tokens) == (2, 1, 20, 2)
    assert [step.source for step in done.trajectory.steps] == ["system", "user", "agent", "agent"]
    assert done.trajectory.steps[2].observations[0].exit_code == 1


async def test_limits_hold_for_a_program_that_knows_none(box: Sandbox, tmp_path: Path) -> None:
    """Beyond its turns it is refused; whether it then ends by itself or has to be ended, the limit is the reason."""
    done = await act(agent(), tmp_path, bash("true"), box=box, limits={"turns": 2})
    assert done.stop is StopReason.TURNS
    assert len(done.requests) == done.acting.usage.turns == 2
    assert "budget_exceeded" in done.of(EventKind.NOTE)[-1]["text"]
    done = await act(agent("stubborn", grace_s=0.1), tmp_path, bash("true"), box=box, limits={"tokens": 15})
    assert done.stop is StopReason.TOKENS
    assert await alive(box) == 0


async def test_the_wall_ends_it(box: Sandbox, tmp_path: Path) -> None:
    """An agent that never ends is ended, with what it started, before the attempt's time is over."""
    done = await act(agent("stubborn"), tmp_path, bash("sleep 500"), box=box, deadline_s=1.0)
    assert done.stop is StopReason.WALL
    assert await alive(box) == 0


async def alive(box: Sandbox) -> int:
    """Processes of the agent that run, other than the one that looks."""
    seen = await box.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
    return seen.stdout.decode().count("/agent.py")


async def test_how_it_ends_says_why(box: Sandbox, tmp_path: Path) -> None:
    """Its own giving up is a valid end, and a status may be declared to mean more."""
    assert (await act(agent("gives-up"), tmp_path, said("no"), box=box)).stop is StopReason.EXITED
    asked = agent("gives-up", exit_codes={4: "no_action"})
    assert (await act(asked, tmp_path, said("no"), box=box)).stop is StopReason.NO_ACTION


@pytest.mark.parametrize("command", [("false",), ("/no/such/program",), ("python3", "-c", "import nothing_like_it")])
async def test_an_agent_that_cannot_start_is_our_fault(command: tuple[str, ...], box: Sandbox, tmp_path: Path) -> None:
    """A broken installation that never asks the model anything is the harness's fault, and says what it said."""
    broken = External(agent=ExternalAgent(name="box", command=command))
    with pytest.raises(HarnessFault, match="before it asked"):
        await act(broken, tmp_path, said("x"), box=box)


async def test_a_dead_endpoint_is_the_models_fault(box: Sandbox, tmp_path: Path) -> None:
    """An agent that ends upon a failure of the endpoint has no verdict; one whose own request is refused has."""
    with pytest.raises(ModelUnreachable):
        await act(agent(), tmp_path, bash("true"), (500, "gone"), box=box)
    with pytest.raises(ModelRefused):
        await act(agent(), tmp_path, (400, "unknown model"), box=box)
    done = await act(agent(), tmp_path, bash("true"), (400, "bad request"), box=box)
    assert done.stop is StopReason.EXITED
    done = await act(agent(), tmp_path, bash("true"), (400, "maximum context length"), box=box)
    assert done.stop is StopReason.CONTEXT
    with pytest.raises(ModelRefused):
        await act(agent(), tmp_path, bash("true"), (401, "key revoked"), box=box)


async def test_what_it_leaves_about_itself_goes(box: Sandbox, tmp_path: Path) -> None:
    """Litter that was not there is removed, what was there stays, and its own account is kept."""
    await box.write("/workspace/.old/x", b"1")
    done = await act(
        agent(litter=[".old", ".new", "none"], trajectory="t.json", files={"conf.json": '{"url": "{base_url}"}'}),
        tmp_path, bash("mkdir .new; echo '{}' > $WOODSHED_AGENT_HOME/t.json; cat $WOODSHED_AGENT_HOME/conf.json"),
        said("done"), box=box)
    assert {entry.name for entry in await box.list("/workspace")} == {".old"}
    assert done.of(EventKind.STATE)[-1]["content"] == "{}\n"
    assert '"url": "http://127.0.0.1:' in done.results[0]


async def test_it_needs_a_model(box: Sandbox, tmp_path: Path) -> None:
    """Without one it is a usage error; a program that needs none just runs."""
    with pytest.raises(UsageError, match="--model"):
        await act(agent(), tmp_path, box=box)
    alone = External(agent=ExternalAgent(name="box", command=("sh", "-c", "cat $WOODSHED_INSTRUCTION_FILE > it"),
                                         needs_model=False))
    assert (await act(alone, tmp_path, box=box)).stop is StopReason.FINISHED
    assert await box.read("/workspace/it") == b"Do it."


PROBE = """\
import json, os, socket, sys
def tried(port, key):
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as s:
            s.sendall(b"GET /v1/models HTTP/1.0\\r\\nAuthorization: Bearer " + key.encode() + b"\\r\\n\\r\\n")
            return s.recv(100).split()[1].decode()
    except OSError as error:
        return "no"
print(json.dumps([tried(*pair) for pair in json.loads(sys.argv[1])]))
"""


async def test_a_sandbox_reaches_its_own_attempt_alone(engine: NativeEngine, tmp_path: Path) -> None:
    """Another attempt's port, this machine's and the endpoint itself are out of reach; another's key opens nothing.

    Positive controls: its own port answers its own key from the same program, and the endpoint answers this machine.
    """
    boxes = [await furnished(engine) for _ in range(2)]
    told = [asyncio.get_running_loop().create_future() for _ in boxes]

    async def attempt(number: int) -> Attempt:
        class Watched(External):
            async def act(self, acting: Any) -> StopReason:
                serve = acting.serve

                def serving(*given: Any) -> Any:
                    door = serve(*given)
                    told[number].set_result((door.key, acting.agent.model.base_url))
                    return door

                acting.serve = serving
                return await super().act(acting)

        watched = Watched(agent=ExternalAgent(name="box", command=(
            "sh", "-c", "echo $OPENAI_BASE_URL > /url; while ! test -e /over; do sleep 0.05; done")))
        return await act(watched, tmp_path, said("hi"), box=boxes[number])

    running = [asyncio.create_task(attempt(number)) for number in range(2)]
    (key, upstream), (other_key, _) = [await one for one in told]
    ports = [await port_of(box) for box in boxes]
    upstream_port = int(upstream.rpartition(":")[2].partition("/")[0])
    pairs = [(ports[0], key), (ports[0], other_key), (ports[0], ""), (upstream_port, key)]
    pairs += [(ports[1], other_key)] if ports[0] != ports[1] else []
    seen = json.loads((await boxes[0].exec(["python3", "-c", PROBE, json.dumps(pairs)])).stdout)
    assert seen[:4] == ["200", "401", "401", "no"]
    assert seen[4:] in ([], ["no"])
    _, writer = await asyncio.open_connection("127.0.0.1", upstream_port)
    writer.close()
    for box in boxes:
        await box.write("/over", b"")
    assert [(await one).stop for one in running] == [StopReason.FINISHED] * 2
    seen = json.loads((await boxes[0].exec(["python3", "-c", PROBE, json.dumps([(ports[0], key)])])).stdout)
    assert seen == ["no"], "the door is gone with its attempt"


async def port_of(box: Sandbox) -> int:
    while True:
        try:
            if text := (await box.read("/url")).decode().strip():
                return int(text.rpartition(":")[2].partition("/")[0])
        except FileNotFoundError:
            pass
        await asyncio.sleep(0.01)
