"""Event: one append-only fact. The events of an attempt are the truth that everything else is derived from."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from woodshed.model.record import Record


class EventKind(StrEnum):
    """Kinds of facts; ``data`` of each is described in ``docs/events.md``."""

    STATE = "state"  # {state, detail}
    STAGE = "stage"  # {stage, seconds, cpu_s}
    MESSAGE = "message"  # {role, content}: system and user messages as sent
    MODEL_CALL = "model_call"  # intent: {call, model, messages, tools, sampling}
    MODEL_RESULT = "model_result"  # {call, content, tool_calls, finish_reason, usage, seconds}
    TOOL_CALL = "tool_call"  # intent: {call, name, arguments}
    TOOL_RESULT = "tool_result"  # {call, content, exit_code, truncated, timed_out, seconds}
    COMPACTION = "compaction"  # {turns, outputs, words, tokens_before, tokens_after, summary}
    STUCK = "stuck"  # {told, pattern, period, times, calls, text}
    FINISH = "finish"  # {claim, admits, command, exit_code, shown, missing, edited, checks, passed, looked, ended}
    CHANGES = "changes"  # {changes, refused, blob}
    VERIFIER = "verifier"  # {exit_code, seconds, report, output_blob, touched}
    GRADE = "grade"  # a Grade's JSON: reward rules, their components, what was measured, the verdict before
    VERDICT = "verdict"  # the verdict's JSON
    POLICY = "policy"  # {policy, verdict, what, host, port, reason, count, …}: a decision upon the sandbox's network
    FEEDBACK = "feedback"  # a Feedback's JSON: what a person said while the agent worked, and what is then expected
    PERSON_CALL = "person_call"  # as model_call: of the model that plays the task's person
    PERSON_RESULT = "person_result"  # as model_result, likewise
    ERROR = "error"  # {cause, type, message, retryable}
    CHECKPOINT = "checkpoint"  # {turn, digest, why, files, bytes, seconds, processes, refused, blobs}
    RESUME = "resume"  # {state: begun, redone, differs or live, …}: how an execution went on with an earlier one
    NOTE = "note"  # {text}


def now() -> datetime:
    """The present time in UTC."""
    return datetime.now(UTC)


class Event(Record):
    """One fact. Unique by (attempt, execution, seq); seq counts from 0 without gaps within an execution."""

    version: int = 1
    attempt: str
    execution: int
    seq: int = Field(ge=0)
    kind: EventKind
    at: datetime
    data: dict[str, Any]
