"""Answers that an earlier execution of an attempt was given: taken from its record, and never asked for again."""

from __future__ import annotations

from woodshed import errors
from woodshed.errors import ModelFault
from woodshed.interfaces import ModelResponse
from woodshed.model import Answer


def recalled(answer: Answer) -> ModelResponse | ModelFault:
    """What the call came to then: an answer, or the failure that the loop went on after."""
    if answer.fault is not None:
        kind = getattr(errors, answer.fault, ModelFault)
        return (kind if isinstance(kind, type) and issubclass(kind, ModelFault) else ModelFault)(answer.content)
    return ModelResponse(
        content=answer.content, tool_calls=answer.tool_calls, finish_reason=answer.finish_reason,
        prompt_tokens=answer.prompt_tokens, completion_tokens=answer.completion_tokens, seconds=answer.seconds,
        reasoning=answer.reasoning,
    )
