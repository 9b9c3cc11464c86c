"""What is known of one kind of server, and how answers of anyone's are read without trusting them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from woodshed.model.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Server:
    """``fields`` are added to a request; ``read`` finds in the answer what it tells, and never raises.

    ``neutral`` is a sampler that leaves the model's distribution as it is, in this server's words: without it the
    logprobs are not those of the distribution that was sampled from.

    Where a server tells only the text of the prompt, ``tokenize`` makes (path, body) of the further question, the path
    from the server's root, and ``tokenized`` the ids of its answer.
    """

    fields: Mapping[str, Any]
    read: Callable[[Mapping[str, Any]], Tokens]
    tokenize: Callable[[str], tuple[str, dict[str, Any]]] | None = None
    tokenized: Callable[[Any], tuple[int, ...] | None] | None = None
    neutral: Mapping[str, Any] = field(default_factory=dict)


def ids(value: Any) -> tuple[int, ...] | None:
    """A list of whole numbers; None for anything else."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:  # JSON makes no kinds of these types
        return None
    return tuple(value)


def numbers(values: Sequence[Any]) -> tuple[float, ...] | None:
    """All of them as floats; None where one is none."""
    if not set(map(type, values)) <= {int, float}:
        return None
    try:
        return tuple(map(float, values))
    except OverflowError:
        return None


def part(value: Any, *path: str | int) -> Any:
    """What lies at ``path`` in parsed JSON; None where the path leads nowhere."""
    for step in path:
        if isinstance(step, str) and isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    return value


def logprobs(answer: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Those of chat completions: ``choices[0].logprobs.content[].logprob``."""
    content = part(answer, "choices", 0, "logprobs", "content")
    if not isinstance(content, list) or not content:
        return None
    try:
        return numbers([one["logprob"] for one in content])
    except (TypeError, KeyError):
        return None
