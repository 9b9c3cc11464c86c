"""A message that is sent to an attempt from outside: who sends it need not know where the attempt runs."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from woodshed.model.record import Record


class MessageKind(StrEnum):
    """What a message is for, which says what its data hold."""

    SAY = "say"  # {text}: a person speaks to the agent, between two of its turns


class SentMessage(Record):
    """A message in an attempt's box. ``number`` names it, and counts in the order in which messages were sent.

    ``execution`` is the newest one that heard it, ``heard_at`` when; None where none has. An execution that begins anew
    hears it again, one that goes on with an earlier one does not: what an agent has heard is in its conversation.
    """

    number: int
    attempt: str
    run: str
    project: str = "default"
    kind: MessageKind
    data: dict[str, Any]
    key: str | None = Field(default=None, description="of the sender's: the same one twice is one message")
    sent_at: datetime
    execution: int | None = None
    heard_at: datetime | None = None
