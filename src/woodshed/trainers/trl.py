"""TRL: a ``rollout_func`` whose completions are attempts of a rollout service, and the reward function beside it.

A prompt of the data set is the name of a task, as the service knows it; the ids that are trained on are those that the
model was really given. Nothing of TRL is imported. Held against TRL 1.16, as its ``GRPOTrainer`` calls::

    rollouts = RolloutFunc(Client(url, key), "my-run", agent="loop", endpoint="policy", serve=push_weights)
    trainer = GRPOTrainer(model, reward_funcs=reward, rollout_func=rollouts,
                          train_dataset=Dataset.from_list([{"prompt": "first-steps/write-file"}, ...]), ...)

An attempt that broke by nobody's doing has the reward None: TRL leaves it out of its group's baseline and gives it no
advantage, and none of its ids is learnt from. With ``loss_type="dapo"`` (TRL's default) and the others that divide by
learnt ids, such a completion changes no update; ``"grpo"`` and ``"dr_grpo"`` divide by completions, whatever they are.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from woodshed.errors import EnvironmentFault, UsageError
from woodshed.model.delivery import Asked, Delivered, Deliveries, Made
from woodshed.model.rollout import Rollout, TokenRow
from woodshed.trainers.client import Client

Serve = Callable[[Any], int | str | None]
"""Puts the trainer's weights where the endpoint samples from, and says their version; None: it has none."""
_TRIES = 3
"""Times that a group is asked for anew where its delivery was consumed by an earlier process."""


class RolloutFunc:
    """What TRL calls with a batch of prompts. One call is one request a task, and ends when every group is whole.

    ``run`` names the training: the same step of it, begun again from a checkpoint, is the same request, and is answered
    with the same rollouts unless these were learnt from already. A group is acknowledged when the next batch is asked
    for. More arguments are of :class:`woodshed.model.delivery.Asked`: ``agent``, ``endpoint``, ``sampling`` and others.

    Raises UsageError for what the service does not offer, EnvironmentFault when it does not answer.
    """

    def __init__(
        self, client: Client, run: str, *, serve: Serve | None = None, lease_s: float = 3600.0, **asked: Any
    ) -> None:  # fmt: skip
        self._client, self._run, self._serve, self._lease_s = client, run, serve, lease_s
        self._asked = {"capture": True, **asked}
        self._held: list[str] = []
        self._calls: Counter[str] = Counter()
        self.left_out = 0
        """Rows that a rollout had besides the one that TRL has room for: its history was rewritten on the way."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """The columns that TRL wants, in the order of ``prompts``; and ``reward``, ``rollout``, ``cause`` of each."""
        self.settle()
        step = self._step(trainer)
        if self._serve is not None and (version := self._serve(trainer)) is not None:
            self._asked["policy_version"] = version
            if isinstance(endpoint := self._asked.get("endpoint"), str):
                self._client.announce(endpoint, version, back=True)
        names = [task(prompt) for prompt in prompts]
        groups = self._groups(step, Counter(names))
        members = {name: deque(group.rollouts) for name, group in groups.items()}
        rollouts = [members[name].popleft() for name in names]
        self.left_out += sum(max(0, len(one.rows) - 1) for one in rollouts)
        return columns(rollouts, _nothing(trainer))

    def settle(self) -> None:
        """What was handed out is learnt from, for good. Call it after the last step."""
        if self._held:
            self._client.ack(self._held)
            self._held = []

    def _step(self, trainer: Any) -> str:
        """Where in the training this is; the same for a training that was resumed there."""
        mode = "train" if trainer.model.training else "eval"
        at = f"{mode}{trainer.state.global_step}"
        self._calls[at] += 1
        return f"{at}.{self._calls[at]}"

    def _groups(self, step: str, wanted: Counter[str]) -> dict[str, Delivered]:
        found: dict[str, Delivered] = {}
        for again in range(_TRIES):
            requests = {self._ask(step, name, wanted[name], again).id: name for name in wanted if name not in found}
            self._take(requests, found)
            if len(found) == len(wanted):
                return found
        raise EnvironmentFault(f"the service has no groups of {', '.join(sorted(wanted.keys() - found.keys()))}: "
                               "they were cancelled, are stale, or were consumed elsewhere")

    def _ask(self, step: str, name: str, n: int, again: int) -> Made:
        place = f"{self._run}/{step}/{again}"
        seed = int.from_bytes(hashlib.sha256(f"{place}/{name}".encode()).digest()[:6], "big")
        asked = Asked.model_validate({**self._asked, "tasks": [name], "n": n, "seed": seed})
        key = hashlib.sha256(f"{place}\n{asked.model_dump_json()}".encode()).hexdigest()
        made = self._client.ask(asked.model_copy(update={"idempotency_key": f"trl-{key}"}))
        if len(made.attempts) != n:
            raise UsageError(f"{name!r} is {len(made.attempts) // n} tasks", field="prompt",
                             remedy="A prompt names one task.")
        return made

    def _take(self, requests: Mapping[str, str], found: dict[str, Delivered]) -> None:
        """Wait for the groups of these requests; those that will never come are left out."""
        again, open_ = True, dict(requests)
        while open_:
            taken: Deliveries = self._client.take(self._run, most=len(open_), lease_s=self._lease_s,
                                                  requests=[*open_], again=again)
            again = False
            for group in taken.groups:
                self._held.append(group.delivery)
                found[open_.pop(group.request)] = group
            if taken.over:
                return


def columns(rollouts: Iterable[Rollout], nothing: int) -> dict[str, list[Any]]:
    """What TRL is handed of these rollouts, one completion each; ``nothing`` is an id to stand where there is none.

    Of a rollout that may not be learnt from no id is told; its ``reward`` is what it is.
    """
    made: dict[str, list[Any]] = defaultdict(list)
    for one in rollouts:
        row = _row(one)
        at = 0 if row is None else row.prompt_length
        values = {
            "prompt_ids": [nothing] if row is None else list(row.token_ids[:at]),
            "completion_ids": [nothing] if row is None else list(row.token_ids[at:]),
            "logprobs": [0.0] if row is None or row.logprobs is None else list(row.logprobs[at:]),
            "env_mask": [0] if row is None else list(row.loss_mask[at:]),
            "reward": one.reward, "rollout": one.rollout, "cause": None if one.cause is None else one.cause.value,
        }
        for key, value in values.items():
            made[key].append(value)
    return dict(made)


def reward(reward: Sequence[float | None], **_more: Any) -> list[float | None]:
    """TRL's reward function: each verdict's total. None, and no 0, where there is no verdict to rely upon."""
    return list(reward)


def task(prompt: Any) -> str:
    """The task that a prompt names: the text, or what the last message of a conversation says. Raises UsageError."""
    last = prompt[-1] if isinstance(prompt, list) and prompt else prompt
    name = last.get("content") if isinstance(last, Mapping) else last
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"{str(prompt)[:100]!r} names no task", field="prompt",
                         remedy='Say for example {"prompt": "first-steps/write-file"}.')
    return name.strip()


def _row(rollout: Rollout) -> TokenRow | None:
    """The row with the most sampled ids: a completion of TRL's is one row. None where nothing may be learnt."""
    rows = [row for row in rollout.rows if row.logprobs is not None]
    return max(rows, key=lambda row: sum(row.loss_mask), default=None) if rollout.trainable else None


def _nothing(trainer: Any) -> int:
    """An id that stands where there is nothing; the mask leaves it out."""
    processing = trainer.processing_class
    tokenizer = getattr(processing, "tokenizer", processing)
    found = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    return next((int(one) for one in found if one is not None), 0)
