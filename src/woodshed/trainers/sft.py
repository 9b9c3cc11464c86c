"""SFT: one row for each answer that deserves it, with the conversation before it as the prompt. Pure.

Columns are those of TRL's conversational prompt-completion sets, ``prompt``, ``completion`` and ``tools``; the loss
is on the completion alone. An answer that is left out is still in the prompts of those after it: they were given it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from woodshed.model import Attempt, Valid
from woodshed.model.exchange import UNPARSED
from woodshed.model.rollout import CallRecord
from woodshed.trainers.chat import Tried, answered, asked, counted
from woodshed.trainers.records import Calls
from woodshed.trainers.rules import SftRules, flagged

_COMPARED = 2000
"""Characters of arguments that are compared: it is quadratic."""


def examples(
    attempt: Attempt, calls: Calls, tried: Mapping[str, Sequence[Tried]], rules: SftRules, dropped: Counter[str]
) -> Iterator[dict[str, Any]]:
    """The rows of one attempt. What is left out is counted in ``dropped``, attempts and answers by reason."""
    verdict = attempt.outcome.verdict if attempt.outcome else None
    reason = _undeserving(verdict, rules)
    if reason is not None or not isinstance(verdict, Valid):
        dropped[f"attempts: {reason}"] += 1
        return
    if not calls.records:
        dropped["attempts: no answer of a model"] += 1
    for record in calls.records:
        after = next((one for one in calls.records
                      if one.parent == record.parent and _order(one) > _order(record)), None)
        if (why := _unfit(record, after, tried, rules)) is not None:
            dropped[f"answers: {why}"] += 1
            continue
        talk = counted([*asked(record), answered(record)])
        yield {
            "prompt": talk[:-1], "completion": talk[-1:], "tools": list(record.tools) or None,
            "task": attempt.task, "agent": attempt.agent, "model": record.model, "attempt": attempt.id,
            "call": record.call, "reward": verdict.total,
        }


def _undeserving(verdict: object, rules: SftRules) -> str | None:
    if not isinstance(verdict, Valid):
        return "not valid"
    if flagged(verdict, rules.without_flags):
        return "flagged"
    if rules.passed and not verdict.passed:
        return "not passed"
    if rules.min_total is not None and (verdict.total is None or verdict.total < rules.min_total):
        return "total too low or unknown"
    return None


def _unfit(
    record: CallRecord, after: CallRecord | None, tried: Mapping[str, Sequence[Tried]], rules: SftRules
) -> str | None:
    told = record.answer.get("tool_calls") or ()
    if "the messages before it are missing" in record.flaws:
        return "prompt incomplete"
    if record.inherited:
        return "of the attempt that this one went on from"
    if record.parent is not None and not rules.subtasks:
        return "of a sub-task"
    if rules.malformed and (record.finish_reason == UNPARSED or any(call.get("error") for call in told)):
        return "malformed"
    if rules.cut and record.finish_reason == "length":
        return "cut off"
    if rules.empty and not told and not str(record.answer.get("content") or "").strip():
        return "empty"
    if after is not None and _redone(tried.get(record.call, ()), tried.get(after.call, ()), rules.redone):
        return "failed and redone"
    return None


def _redone(acts: Sequence[Tried], then: Sequence[Tried], alike: float) -> bool:
    """Whether all acts failed, and one of the next answer's, much like one of them, did not."""
    if not acts or not all(act.failed for act in acts):
        return False
    return any(act.name == later.name and later.failed is False and _likeness(act, later) >= alike
               for act in acts for later in then)


def _likeness(one: Tried, other: Tried) -> float:
    return SequenceMatcher(None, one.arguments[:_COMPARED], other.arguments[:_COMPARED], autojunk=False).ratio()


def _order(record: CallRecord) -> tuple[int, str]:
    return len(record.call), record.call
