"""Rows of an export as records again: for tools of a trainer that want more than columns. Pure.

A row may come of JSONL, of Parquet (where JSON stands as text), or of ``datasets``, which writes None for what a row
does not have. What stands in a row beside the record is left out::

    calls = defaultdict(list)
    for row in load_dataset("data/calls", split="train"):
        calls[row["rollout"]].append(call_of(row))
    samples = [nemo(one, calls[one.rollout]) for one in map(rollout_of, load_dataset("data/grpo", split="train"))]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from woodshed.model import Record
from woodshed.model.rollout import CallRecord, Rollout, TokenRow
from woodshed.trainers.files import CHATS, TABLES

R = TypeVar("R", bound=Record)


def call_of(row: Mapping[str, Any]) -> CallRecord:
    """The model call of a row of ``--format calls``. Raises ValueError for anything else."""
    return _read(CallRecord, row)


def rollout_of(row: Mapping[str, Any]) -> Rollout:
    """The rollout of a row of ``--format grpo``. Raises ValueError for anything else."""
    return _read(Rollout, row)


def _read(of: type[R], row: Mapping[str, Any]) -> R:
    values = _told(of, {name: _parsed(name, value) for name, value in row.items()})
    if values.get("rows"):
        values["rows"] = [_told(TokenRow, one) for one in values["rows"]]
    return of.model_validate(values)


def _told(of: type[Record], row: Mapping[str, Any]) -> dict[str, Any]:
    """The record's own fields. One that has a default has it where the row says None."""
    return {name: row[name] for name, field in of.model_fields.items()
            if name in row and (row[name] is not None or field.is_required())}


def _parsed(name: str, value: Any) -> Any:
    if name in CHATS and value is not None:
        return [json.loads(one) if isinstance(one, str) else one for one in value]
    return json.loads(value) if name in TABLES and isinstance(value, str) else value
