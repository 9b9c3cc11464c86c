"""A fine attempt at a task of several steps goes on in the step and at the turn that it had reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stepped import STEPS, Stepped, a_task
from woodshed.model import CheckpointRule, EventKind, Valid
from woodshed.sandbox.native.engine import NativeEngine


@pytest.fixture
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    """The engine of one test."""
    made = NativeEngine(shed_home)
    yield made
    await made.close()


async def calm(engine: NativeEngine, folder: Path, rule: CheckpointRule) -> Stepped:
    """An attempt that nobody disturbed."""
    attempt = Stepped(folder / "calm", engine, a_task(folder / "task"), rule)
    outcome = await attempt.run()
    assert isinstance(outcome.verdict, Valid)
    assert outcome.verdict.passed, outcome.verdict
    return attempt


async def test_x(engine: NativeEngine, tmp_path: Path) -> None:
    import time
    t=time.time()
    one = await calm(engine, tmp_path, CheckpointRule(turns=1))
    print(time.time()-t, len(one.events))
    for i,e in enumerate(one.events): print(i,e.kind, str(e.data)[:100])
    whole = one.run
    for cut in range(12, len(one.events)+1):
        t=time.time()
        two = Stepped(tmp_path / f"broken{cut}", engine, one.task, one.rule)
        out = await two.run([cut])
        print(cut, time.time()-t, out.verdict.total if isinstance(out.verdict, Valid) else out.verdict)
        assert out.verdict.total == 1.0
        assert two.steps == one.steps
        assert two.verifier.asked.total() <= 4, two.verifier.asked
        assert sum(two.asked.values()) - sum(one.asked.values()) <= 1
