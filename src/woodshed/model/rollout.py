"""Rollout: an attempt as a trainer takes it: its model calls with their tokens, and the rows that they make."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field, model_validator

from woodshed.errors import Cause
from woodshed.model.record import Record


class CaptureLevel(StrEnum):
    """What a server told of a call. Only the first is enough for a policy gradient; text is for evaluation and SFT."""

    LOGPROBS = "tokens+logprobs"
    TOKENS = "tokens"
    TEXT = "text"


WORST = (CaptureLevel.LOGPROBS, CaptureLevel.TOKENS, CaptureLevel.TEXT)
"""From the best to the worst: a rollout has the level of its worst call."""


class CallRecord(Record):
    """One model call. Unique by (rollout, call); ``parent`` is the tool call that delegated its conversation.

    ``loss_mask`` is by the ids of the completion: 1 where one was sampled by the model and may be learnt from.
    ``asked`` is what a program of others asked of the sampler, ``sampling`` what was sent. ``flaws`` say why the call
    cannot be trained on; what it did tell is kept beside them. An ``inherited`` call is another attempt's, from which
    this one went on: its ids are context here. The weights were ``policy_version`` when the call left, and where they
    were others when its answer came, ``policy_after``: it is mixed.
    """

    rollout: str
    attempt: str
    execution: int
    call: str
    parent: str | None = None
    model: str
    policy_version: str | None = None
    policy_after: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    completion_token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    loss_mask: tuple[int, ...] | None = None
    finish_reason: str
    asked: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    answer: dict[str, Any] = {}
    inherited: bool = False
    capture_level: CaptureLevel
    flaws: tuple[str, ...] = ()


class TokenRow(Record):
    """A sequence of ids to train on: a first prompt, and completions with what stood between them.

    ``loss_mask`` is 1 exactly where an id was sampled by one of ``calls``; ``logprobs`` are 0.0 elsewhere, and None
    where a call told none. The first ``prompt_length`` ids are the first call's prompt. ``mixed`` are those of
    ``calls`` during which the weights changed; ``policy_versions`` has what each began with.
    """

    row: int = Field(ge=0)
    calls: tuple[str, ...]
    parent: str | None = None
    policy_versions: tuple[str | None, ...] = ()
    mixed: tuple[str, ...] = ()
    prompt_length: int = Field(gt=0)
    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    finish_reason: str

    @model_validator(mode="after")
    def _fits(self) -> TokenRow:
        lengths = {len(one) for one in (self.token_ids, self.loss_mask, self.logprobs) if one is not None}
        if len(lengths) != 1 or self.prompt_length > len(self.token_ids):
            raise ValueError("ids, mask and logprobs of a row have one length")
        return self


class Rollout(Record):
    """An attempt at the trainers' edge. ``reward`` is None wherever there is none: never a made-up 0.

    ``trainable`` says whether ``rows`` may be learnt from; where they may not, ``untrainable`` says why and there are
    no rows. ``drift`` counts how prompts went on from what had been generated (``docs/exports.md``).
    """

    version: int = 1
    rollout: str
    attempt: str
    execution: int
    task: str
    agent: str
    index: int
    reward: float | None
    rewards: dict[str, float | None] = {}
    valid: bool
    passed: bool | None = None
    cause: Cause | None = None
    flags: tuple[str, ...] = ()
    stop: str | None = None
    seed: int | None = None
    trainable: bool
    untrainable: tuple[str, ...] = ()
    capture_level: CaptureLevel
    drift: dict[str, int] = {}
    rows: tuple[TokenRow, ...] = ()

    @model_validator(mode="after")
    def _honest(self) -> Rollout:
        if not self.valid and self.reward is not None:
            raise ValueError("an invalid rollout has no reward")
        if self.trainable and self.reward is None:
            raise ValueError("nothing can be learnt from a rollout without a reward")
        if self.trainable == bool(self.untrainable):
            raise ValueError("a rollout that is not trainable says why, and only such a one")
        return self
