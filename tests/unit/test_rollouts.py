"""Calls of an attempt as records, what makes a rollout untrainable, and the baseline of a group."""

from __future__ import annotations

from typing import Any

import pytest

from woodshed.errors import Cause
from woodshed.model import (
    Assurance,
    Attempt,
    AttemptState,
    Event,
    EventKind,
    Invalid,
    Outcome,
    StopReason,
    Valid,
)
from woodshed.model.event import now
from woodshed.model.rollout import CaptureLevel, Rollout
from woodshed.model.tokens import Packer, Tokens
from woodshed.trainers.records import Calls, calls_of
from woodshed.trainers.rollouts import baseline, rollout
from woodshed.trainers.stitch import stitch

K = EventKind
Told = tuple[EventKind, dict[str, Any]]


def nothing(sha256: str) -> bytes:
    raise KeyError(sha256)


def asked(number: int, messages: list[dict[str, Any]], kept: int = 0, **more: Any) -> Told:
    return K.MODEL_CALL, {"call": f"m{number:05d}", "model": "m", "kept": kept, "messages": messages, "tools": None,
                          "sampling": {"temperature": 1.0}, **more}


def answered(number: int, tokens: dict[str, Any] | None, content: str = "ok", **more: Any) -> Told:
    return K.MODEL_RESULT, {"call": f"m{number:05d}", "content": content, "tool_calls": [], "finish_reason": "stop",
                            "usage": {}, "seconds": 1.0, **({"tokens": tokens} if tokens else {}), **more}


def events(story: list[Told]) -> list[Event]:
    return [Event(attempt="a", execution=1, seq=seq, kind=kind, at=now(), data=data)
            for seq, (kind, data) in enumerate(story)]


def tokens(prompt: tuple[int, ...], completion: tuple[int, ...]) -> Tokens:
    return Tokens(prompt, completion, tuple(-1.0 for _ in completion), "v1")


USER, MORE = {"role": "user", "content": "fix"}, {"role": "tool", "content": "a.py"}


def story() -> list[Told]:
    packer = Packer(lambda content: "")
    return [
        asked(1, [USER]), answered(1, packer.packed("m00001", tokens((1, 2), (3, 4)))),
        asked(2, [MORE], kept=1), answered(2, packer.packed("m00002", tokens((1, 2, 3, 4, 5), (6,)))),
    ]


def attempt(verdict: Valid | Invalid, stop: StopReason = StopReason.FINISHED, index: int = 0) -> Attempt:
    return Attempt(id="a", run="r", task="t", agent="loop", index=index, seed=7, state=AttemptState.DONE, executions=1,
                   outcome=Outcome(verdict=verdict, stop=stop))


def valid(total: float | None) -> Valid:
    return Valid(rewards={"reward": total}, total=total, assurance=Assurance.POISONED)


def made(calls: Calls, stop: StopReason = StopReason.FINISHED) -> Rollout:
    return rollout(attempt(valid(1.0), stop), calls)


def test_calls_are_read_with_their_conversation() -> None:
    """A record holds the whole conversation as it was sent, and the ids that an event only tells the rest of."""
    calls = calls_of(events(story()), nothing)
    first, second = calls.records
    assert second.messages == (USER, MORE)
    assert (first.prompt_token_ids, second.prompt_token_ids) == ((1, 2), (1, 2, 3, 4, 5))
    assert (second.capture_level, second.policy_version, second.flaws) == (CaptureLevel.LOGPROBS, "v1", ())
    assert story()[3][1]["tokens"]["prompt"] == {"count": 5, "of": "m00001", "kept": 4, "ids": [5]}


def test_a_whole_rollout_is_trainable() -> None:
    """One row holds both answers, learnt, and the tool's result between them, masked."""
    found = made(calls_of(events(story()), nothing))
    assert (found.trainable, found.untrainable, found.drift) == (True, (), {"begun": 1, "clean": 1})
    [row] = found.rows
    assert (row.token_ids, row.loss_mask) == ((1, 2, 3, 4, 5, 6), (0, 0, 1, 1, 0, 1))
    assert row.logprobs == (0.0, 0.0, -1.0, -1.0, 0.0, -1.0)


@pytest.mark.parametrize(("spoil", "reason"), [
    (lambda told: told[:1] + told[2:], "call m00001 has no answer to rely upon"),
    (lambda told: told[1:], "call m00001 has no answer to rely upon"),
    (lambda told: [*told[:1], answered(1, None), *told[2:]], "call m00001 has no token ids"),
    (lambda told: [*told[:2], answered(1, None, "other"), *told[2:]], "call m00001 has no answer to rely upon"),
    (lambda told: [*told[:1], answered(1, {"prompt": {"count": 2, "ids": [1]}}), *told[2:]], "2 were told"),
    (lambda told: [*told[:1], answered(1, {"prompt": {"count": 300, "blob": "0" * 64}}), *told[2:]], "damaged"),
    (lambda told: [*told[:1], (K.MODEL_RESULT, {"truncated": True}), *told[2:]], "too large"),
    (lambda told: [*told, asked(3, [], kept=9), answered(3, None)], "the messages before it are missing"),
], ids=["lost answer", "lost question", "text only", "two answers", "short", "lost blob", "too large", "gap"])
def test_a_lost_or_inconsistent_call_makes_a_rollout_untrainable(spoil: Any, reason: str) -> None:
    """It then has no rows, and says which call and why; its reward is still what it was."""
    found = made(calls_of(events(spoil(story())), nothing))
    assert not found.trainable
    assert not found.rows
    assert reason in " | ".join(found.untrainable)
    assert found.reward == 1.0


def test_a_call_that_was_cut_off_by_a_limit_is_no_loss() -> None:
    """Where the attempt ended while the last call was answered, nothing of that answer was used."""
    calls = calls_of(events([*story(), asked(3, [], kept=2)]), nothing)
    assert made(calls, StopReason.WALL).trainable
    assert made(calls, StopReason.FINISHED).untrainable == ("call m00003 has no answer to rely upon",)


def test_a_call_that_the_endpoint_refused_for_good_is_no_loss() -> None:
    """It never had an answer: a context that was too long, and was made smaller."""
    refused: list[Told] = [asked(3, [], kept=2), (K.NOTE, {"text": "x", "call": "m00003", "fault": "ContextExceeded",
                                                           "message": "too long"})]
    packer = Packer(lambda content: "")
    last: list[Told] = [asked(4, [USER]), answered(4, packer.packed("m00004", tokens((1, 9), (6,))))]
    found = made(calls_of(events([*story(), *refused, *last]), nothing))
    assert (found.trainable, len(found.rows), found.drift["prompt"]) == (True, 2, 1)


def test_the_same_answer_told_twice_counts_once() -> None:
    """A retry that was answered from the record changes nothing."""
    told = story()
    assert calls_of(events([*told[:2], told[1], *told[2:]]), nothing) == calls_of(events(told), nothing)


def test_two_records_of_a_call_that_differ_are_a_contradiction() -> None:
    """Neither of them is used, and the rollout says so."""
    records = calls_of(events(story()), nothing).records
    other = records[0].model_copy(update={"completion_token_ids": (3, 5)})
    found = made(Calls((*records, other)))
    assert found.untrainable == ("call m00001 is recorded twice, and differently",)


@pytest.mark.parametrize(("prompt", "kind"), [
    ((1, 2, 3, 4, 5, 6, 7), "clean"), ((1, 2, 3, 4, 5, 6, 9), "ending"), ((1, 2, 3, 9), "completion"),
    ((1, 9), "prompt"), ((1, 2, 3), "again"), ((1, 2, 3, 4, 5, 6), "again"),
], ids=range(6))
def test_drift_is_told_by_kind(prompt: tuple[int, ...], kind: str) -> None:
    """How a prompt departs from what was generated is counted under its name."""
    story = [asked(1, [USER]), answered(1, Packer(lambda _: "").packed("m00001", tokens((1, 2), (3, 4, 5, 6, 7)))),
             asked(2, [USER]), answered(2, Packer(lambda _: "").packed("m00002", tokens(prompt, (8,))))]
    drift = stitch(calls_of(events(story), nothing).records).drift
    expected = {"clean": "ending"}.get(kind, kind) if len(prompt) < 7 else kind
    assert drift == {"begun": 1, expected: 1}


def test_a_history_that_was_written_again_is_told_as_context() -> None:
    """Compaction after the first prompt forks, and counts as a change of context."""
    told = story()
    told += [asked(3, [USER]), answered(3, Packer(lambda _: "").packed("m00003", tokens((1, 2, 9), (8,))))]
    assert stitch(calls_of(events(told), nothing).records).drift == {"begun": 1, "clean": 1, "context": 1}


def test_text_alone_is_for_evaluation() -> None:
    """Without ids there is a rollout with a reward and no rows."""
    found = made(calls_of(events([asked(1, [USER]), answered(1, None)]), nothing))
    assert found.capture_level is CaptureLevel.TEXT
    assert found.untrainable == ("the server told no token ids (capture level text)",)


def test_an_invalid_attempt_has_no_reward_and_moves_no_baseline() -> None:
    """Reward null, and the mean and deviation are those of the valid ones alone."""
    calls = calls_of(events(story()), nothing)
    broken = rollout(attempt(Invalid(cause=Cause.ENVIRONMENT, detail="x")), calls)
    assert (broken.reward, broken.valid, broken.cause) == (None, False, Cause.ENVIRONMENT)
    assert broken.untrainable == ("it has no reward (environment)",)
    unknown = rollout(attempt(valid(None)), calls)
    survivors = [rollout(attempt(valid(total)), calls) for total in (1.0, 0.0)]
    found = baseline([*survivors, broken, unknown])
    assert (found.valid, found.mean, found.deviation) == (2, 0.5, 0.5)
    assert found == baseline(survivors)
    assert [found.advantage(one.reward) for one in (*survivors, broken)] == [0.5, -0.5, None]
    assert baseline([broken]).mean is None
