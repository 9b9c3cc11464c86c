"""Gathering: finished attempts as rollouts, their secrets seen to, whoever takes them: a data set or a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from woodshed.model import Attempt, Event
from woodshed.model.rollout import CallRecord, CaptureLevel, Rollout
from woodshed.services.history import history
from woodshed.services.home import Home
from woodshed.trainers import chat
from woodshed.trainers.chat import Chat
from woodshed.trainers.records import Calls, calls_of
from woodshed.trainers.rollouts import rollout
from woodshed.trainers.secrets import Masker

_OF_IDS = frozenset({"rows", "prompt_token_ids", "completion_token_ids", "logprobs", "loss_mask"})


@dataclass(frozen=True, slots=True)
class Gatherer:
    """Reads attempts of one home. ``masker`` knows what is secret; ``vocabulary`` is how many ids the model has."""

    home: Home
    masker: Masker
    vocabulary: int | None = None

    def rollout(self, attempt: Attempt) -> tuple[Rollout, list[Chat]]:
        """A finished attempt as a rollout, and the conversation that it began with, which is not masked yet.

        Ids of tokens cannot be masked: where their text holds a secret, there are none, and the rollout says why.
        Raises ValueError for an attempt without an outcome, StoreFault.
        """
        calls, spoilt = self._attempt(attempt)
        first = next((record for record in calls.records if record.parent is None), None)
        return rollout(attempt, calls, spoilt=spoilt), chat.asked(first) if first is not None else []

    def records(self, attempt: Attempt) -> tuple[list[CallRecord], tuple[str, ...]]:
        """An attempt's model calls, whose text is not masked yet, and those that have no answer to rely upon.

        Where the text holds a secret, no call has ids, and each says why.
        """
        calls, spoilt = self._attempt(attempt)
        bare = {"prompt_token_ids": None, "completion_token_ids": None, "logprobs": None, "loss_mask": None,
                "capture_level": CaptureLevel.TEXT} if spoilt else {}
        return [one.model_copy(update={**bare, "flaws": (*one.flaws, *spoilt)}) for one in calls.records], calls.lost

    def masked(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row with its texts masked. Ids hold none, and are many."""
        return {key: value if key in _OF_IDS else self.masker.masked(value) for key, value in row.items()}

    def _attempt(self, attempt: Attempt) -> tuple[Calls, list[str]]:
        calls = self.calls(history(self.home, attempt) if attempt.executions else ())
        held = self.masker.kinds(part for record in calls.records
                                 for part in (record.messages, record.answer, record.tools))
        return calls, [f"its text holds secrets, and ids cannot be masked ({', '.join(sorted(held))})"] if held else []

    def calls(self, events: Sequence[Event]) -> Calls:
        """The model calls that these events tell of."""
        return calls_of(events, self._blob, vocabulary=self.vocabulary)

    def _blob(self, sha256: str) -> bytes:
        with self.home.blobs.open(sha256, verify=True) as file:
            return file.read()
