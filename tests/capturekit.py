"""Holds what a run recorded and exported of tokens against what its server generated."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit import woodshed
from tokenserver import reader
from woodshed.model import Attempt, Event, EventKind, StopReason
from woodshed.services.history import history
from woodshed.services.home import opened
from woodshed.trainers.records import calls_of

MOST_CALLS = 200


@dataclass(frozen=True)
class Truth:
    """What the server says that it generated in one call. None is what it does not tell by itself."""

    prompt: tuple[int, ...] | None
    completion: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_count: int


def exported(home: Path, run: str, out: Path, *more: str) -> list[dict[str, Any]]:
    """The rollouts of ``woodshed export --format grpo``."""
    done = woodshed("export", run, "--format", "grpo", "--out", out, *more, home=home)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for file in sorted((out / "data").iterdir()) for line in file.read_text().splitlines()]


def cut_off(attempt: Attempt, events: Sequence[Event]) -> int | None:
    """The call that ran when the attempt's time was over, from 0: its answer may come when nobody is there."""
    calls = [event.data["call"] for event in events if event.kind is EventKind.MODEL_CALL]
    told = {event.data["call"] for event in events if event.kind is EventKind.MODEL_RESULT}
    over = attempt.outcome is not None and attempt.outcome.stop is StopReason.WALL
    return len(calls) - 1 if over and calls and calls[-1] not in told else None


def held_against(
    delivered: Callable[[Sequence[int]], Sequence[Truth]], home: Path, run: str, rollouts: Sequence[Mapping[str, Any]],
    vocabulary: int,
) -> int:
    """Every rollout's rows hold exactly what the server generated for its attempt; how many calls there were.

    ``delivered`` are the answers that arrived of calls with these seeds: an attempt's own, in the order of its calls.
    """
    counted = 0
    with opened(home) as place:
        for made in rollouts:
            attempt = place.store.attempt(made["attempt"])
            events = history(place, attempt)
            records = calls_of(events, reader(place.blobs), vocabulary=vocabulary).records
            cut = cut_off(attempt, events)
            truth = delivered([attempt.seed + number for number in range(MOST_CALLS) if number != cut])
            assert [record.completion_token_ids for record in records] == [one.completion for one in truth]
            assert [record.logprobs for record in records] == [one.logprobs for one in truth]
            assert [len(record.prompt_token_ids or ()) for record in records] == [one.prompt_count for one in truth]
            assert all(one.prompt in (None, record.prompt_token_ids)
                       for record, one in zip(records, truth, strict=True))
            by_call = dict(zip((record.call for record in records), truth, strict=True))
            for row in made["rows"]:
                ids = [one for one, mask in zip(row["token_ids"], row["loss_mask"], strict=True) if mask]
                assert ids == [one for name in row["calls"] for one in by_call[name].completion]
                logprobs = [one for one, mask in zip(row["logprobs"], row["loss_mask"], strict=True) if mask]
                assert logprobs == [one for name in row["calls"] for one in by_call[name].logprobs]
            assert sorted(name for row in made["rows"] for name in row["calls"]) == sorted(by_call)
            counted += len(truth)
    return counted
