"""Rows of exports, read back as the records that they were made of."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from exportkit import rows_of
from woodshed.errors import Cause
from woodshed.model.rollout import CallRecord, CaptureLevel, Rollout, TokenRow
from woodshed.trainers import grpo
from woodshed.trainers.files import Shards, flat, line_of, schema
from woodshed.trainers.rows import call_of, rollout_of

NAMES = some.text(some.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6)
TEXTS = some.text(some.characters(codec="utf-8"), max_size=12)
IDS = some.integers(0, 2**31 - 1)
LOGPROBS = some.floats(-30, 0, allow_nan=False)
JSON = some.dictionaries(NAMES, some.one_of(some.none(), some.booleans(), some.integers(-9, 9), TEXTS), max_size=3)
TUPLE = some.lists(JSON, max_size=3).map(tuple)
LEVELS = some.sampled_from(CaptureLevel)


@some.composite
def calls(draw: some.DrawFn) -> CallRecord:
    """Any call, with ids or without."""
    told = draw(some.booleans())
    ids = tuple(draw(some.lists(IDS, max_size=4)))
    return CallRecord(
        rollout=draw(NAMES), attempt=draw(NAMES), execution=draw(some.integers(1, 9)), call=draw(NAMES),
        parent=draw(some.none() | NAMES), model=draw(TEXTS), policy_version=draw(some.none() | NAMES),
        prompt_token_ids=tuple(draw(some.lists(IDS, max_size=4))) if told else None,
        completion_token_ids=ids if told else None, loss_mask=(1,) * len(ids) if told else None,
        logprobs=tuple(draw(LOGPROBS) for _ in ids) if told and draw(some.booleans()) else None,
        finish_reason=draw(NAMES), asked=draw(JSON), sampling=draw(JSON), messages=draw(TUPLE), tools=draw(TUPLE),
        answer=draw(JSON), inherited=draw(some.booleans()), capture_level=draw(LEVELS),
        flaws=tuple(draw(some.lists(TEXTS, max_size=2))))


@some.composite
def rollouts(draw: some.DrawFn) -> Rollout:
    """Any rollout, valid or not, trainable or not."""
    valid = draw(some.booleans())
    reward = draw(some.none() | some.floats(-2, 2, allow_nan=False)) if valid else None
    reasons = tuple(draw(some.lists(NAMES, min_size=int(reward is None), max_size=2)))
    ids = tuple(draw(some.lists(IDS, min_size=1, max_size=4)))
    row = TokenRow(row=0, calls=(draw(NAMES),), parent=draw(some.none() | NAMES), prompt_length=1, token_ids=ids,
                   policy_versions=(draw(some.none() | NAMES),), loss_mask=(0,) * len(ids), finish_reason=draw(NAMES),
                   logprobs=tuple(draw(LOGPROBS) for _ in ids) if draw(some.booleans()) else None)
    return Rollout(
        rollout=draw(NAMES), attempt=draw(NAMES), execution=draw(some.integers(0, 9)), task=draw(NAMES),
        agent=draw(NAMES), index=draw(some.integers(0, 99)), reward=reward, valid=valid,
        rewards=draw(some.dictionaries(NAMES, some.none() | some.floats(-2, 2, allow_nan=False), max_size=2)),
        passed=draw(some.none() | some.booleans()), cause=None if valid else draw(some.sampled_from(Cause)),
        flags=tuple(draw(some.lists(NAMES, max_size=2))), stop=draw(some.none() | NAMES),
        seed=draw(some.none() | some.integers(0, 2**31)), trainable=not reasons, untrainable=reasons,
        capture_level=draw(LEVELS), drift=draw(some.dictionaries(NAMES, some.integers(0, 9), max_size=2)),
        rows=() if reasons else (row,))


@given(calls(), rollouts())
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_a_line_gives_the_record_back(call: CallRecord, rollout: Rollout) -> None:
    """JSONL of a call and of a rollout in its group, whatever they hold; and Parquet's JSON as text."""
    row = {"group": "g", "task": "t", "agent": "a", **call.to_json()}
    [told] = grpo.rows("r", [(rollout, [{"role": "user", "content": "x"}])])
    for made in (lambda one: json.loads(line_of(one)), flat):
        assert call_of(made(row)) == call
        assert rollout_of(made(told)) == rollout


@given(some.lists(calls(), min_size=1, max_size=3), some.lists(rollouts(), min_size=1, max_size=3))
@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_a_file_gives_the_records_back(some_calls: list[CallRecord], group: list[Rollout]) -> None:
    """Real files of both kinds, with every field of the record in a column."""
    parquet = pytest.importorskip("pyarrow.parquet")
    assert {*schema("calls").names} == {"group", "task", "agent", *CallRecord.model_fields}
    assert {field.name for field in schema("grpo").field("rows").type.value_type} == {*TokenRow.model_fields}
    rows: dict[str, list[dict[str, Any]]] = {
        "calls": [{"group": "g", "task": "t", "agent": "a", **one.to_json()} for one in some_calls],
        "grpo": grpo.rows("r", [(one, []) for one in group])}
    for kind, form in ((kind, form) for kind in rows for form in ("jsonl", "parquet")):
        with TemporaryDirectory() as name:
            with Shards(Path(name), form, kind) as shards:  # type: ignore[arg-type]  # both are forms
                for row in rows[kind]:
                    shards.add(row)
            read = rows_of(Path(name)) if form == "jsonl" else parquet.read_table(shards.files[0]).to_pylist()
        if kind == "calls":
            assert [call_of(one) for one in read] == some_calls
        else:
            assert [rollout_of(one) for one in read] == group


def test_what_is_no_such_row_is_refused() -> None:
    """A row of another export is no call, and no rollout."""
    for read in (call_of, rollout_of):
        with pytest.raises(ValueError, match="Field required"):
            read({"prompt": [], "completion": []})
