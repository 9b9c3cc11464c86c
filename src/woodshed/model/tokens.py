"""Token ids and logprobs of one model call: what a server told, how an event holds it, and what is wrong with it. Pure.

An event holds of a prompt only what the prompt and completion of an earlier call do not begin with (``of``, ``kept``),
so a log grows with a conversation and not with its square. What is long is a blob: ids as packed little-endian int32,
logprobs as packed little-endian float64 (every digit that a server told is kept).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

INLINE = 256
"""As many ids, or logprobs, stand in an event itself; more are a blob."""
HIGHEST = 2**31 - 1
"""No vocabulary has more ids: servers hold them in 32 bits."""

Put = Callable[[bytes], str]
"""Keeps a blob and gives its sha256."""
Get = Callable[[str], bytes]
"""The blob of this sha256. Raises whatever says that there is none."""


class Unreadable(Exception):
    """What an event tells of tokens cannot be read: the message says what is missing or does not fit."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a server told of one call. None is what it did not tell.

    ``completion`` are the ids that were sampled, an end-of-turn token included; ``logprobs`` are theirs, under the
    distribution that they were sampled from or the raw one, as the server is configured. ``prompt_text`` is the
    rendered prompt of a server that tells it in the place of ids. ``policy_version`` is that of the weights when the
    call left, ``policy_after`` when its answer came, where it is another: then some ids are of each.
    """

    prompt: tuple[int, ...] | None = None
    completion: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    policy_version: str | None = None
    prompt_text: str | None = None
    policy_after: str | None = None

    @property
    def whole(self) -> tuple[int, ...]:
        """Prompt and completion, as the next prompt may begin."""
        return (*(self.prompt or ()), *(self.completion or ()))


def flaws(
    tokens: Tokens, *, vocabulary: int | None = None, prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
) -> tuple[str, ...]:
    """What is wrong with them, for people; nothing where they can be trained on.

    ``vocabulary`` is the number of ids that the model has, where it is known; the counts are those that the server
    told beside (0 and None: it told none).
    """
    found = []
    for name, ids, count in (("prompt", tokens.prompt, prompt_tokens),
                             ("completion", tokens.completion, completion_tokens)):
        if ids is None:
            continue
        if not ids:
            found.append(f"the {name} has no ids")
        if ids and (min(ids) < 0 or max(ids) >= (vocabulary or HIGHEST + 1)):
            found.append(f"the {name} has ids outside the vocabulary")
        if count and count != len(ids):
            found.append(f"the {name} has {len(ids)} ids, and the server counted {count}")
    if tokens.logprobs is not None:
        if len(tokens.logprobs) != len(tokens.completion or ()):
            found.append(f"{len(tokens.logprobs)} logprobs for {len(tokens.completion or ())} ids")
        if tokens.logprobs and not (all(map(math.isfinite, tokens.logprobs)) and max(tokens.logprobs) <= 0):
            found.append("a logprob is no number of zero or less")
    return tuple(found)


@dataclass(slots=True)
class Packer:
    """Makes the ``tokens`` of the ``model_result`` events of one execution. ``put`` keeps blobs; None: there are none.

    A list that could not be kept raises what ``put`` raises, and the next prompt does not go on from that call.
    """

    put: Put | None
    _last: dict[str | None, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def packed(self, call: str, tokens: Tokens, *, parent: str | None = None) -> dict[str, Any]:
        """The object for the event of ``call``, in the conversation that ``parent`` delegated (None: the main one)."""
        written: dict[str, Any] = {}
        if tokens.prompt is not None:
            of, before = self._last.get(parent, (None, ()))
            kept = shared(before, tokens.prompt)
            written["prompt"] = {"count": len(tokens.prompt)}
            if kept:
                written["prompt"] |= {"of": of, "kept": kept}
            written["prompt"] |= self._list("ids", tokens.prompt[kept:], "i")
        if tokens.completion is not None:
            written["completion"] = {"count": len(tokens.completion), **self._list("ids", tokens.completion, "i")}
        if tokens.logprobs is not None:
            written["logprobs"] = {"count": len(tokens.logprobs), **self._list("values", tokens.logprobs, "d")}
        if tokens.policy_version is not None:
            written["policy_version"] = tokens.policy_version
        if tokens.policy_after is not None:
            written["policy_after"] = tokens.policy_after
        self._last[parent] = (call, tokens.whole)
        return written

    def _list(self, name: str, values: Sequence[float], code: str) -> dict[str, Any]:
        if len(values) <= INLINE or self.put is None:
            return {name: list(values)}
        return {"blob": self.put(struct.pack(f"<{len(values)}{code}", *values))}


@dataclass(slots=True)
class Unpacker:
    """Reads what a :class:`Packer` wrote, events in the order of their calls. ``get`` opens blobs."""

    get: Get
    _whole: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def unpacked(self, call: str, written: Mapping[str, Any]) -> Tokens:
        """The tokens of ``call``. Raises Unreadable for anything that does not fit together."""
        try:
            tokens = self._tokens(written)
        except Unreadable:
            raise
        except Exception as error:  # what a record holds may be anything, and a blob may be lost
            raise Unreadable(f"its record is damaged ({type(error).__name__}: {error})") from error
        self._whole[call] = tokens.whole
        return tokens

    def _tokens(self, written: Mapping[str, Any]) -> Tokens:
        prompt = completion = logprobs = None
        if (told := written.get("prompt")) is not None:
            kept = int(told.get("kept", 0))
            before = self._whole.get(told["of"], ()) if kept else ()
            if len(before) < kept:
                raise Unreadable(f"its prompt goes on from {told['of']}, which is missing")
            prompt = before[:kept] + self._ids(told, int(told["count"]) - kept)
        if (told := written.get("completion")) is not None:
            completion = self._ids(told, int(told["count"]))
        if (told := written.get("logprobs")) is not None:
            logprobs = tuple(float(one) for one in self._list(told, "values", "d", int(told["count"])))
        version, after = (None if written.get(name) is None else str(written[name])
                          for name in ("policy_version", "policy_after"))
        return Tokens(prompt, completion, logprobs, version, policy_after=after)

    def _ids(self, told: Mapping[str, Any], count: int) -> tuple[int, ...]:
        return tuple(int(one) for one in self._list(told, "ids", "i", count))

    def _list(self, told: Mapping[str, Any], name: str, code: str, count: int) -> Sequence[float]:
        values: Sequence[float] = told[name] if name in told else _read(self.get(told["blob"]), code)
        if len(values) != count:
            raise Unreadable(f"{len(values)} {name} are kept, and {count} were told")
        return values


def shared(one: Sequence[object], other: Sequence[object]) -> int:
    """How many ids, or characters, both begin with. Halves its way: to compare slices is much faster than ids."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _read(content: bytes, code: str) -> tuple[float, ...]:
    size = struct.calcsize(f"<{code}")
    return struct.unpack(f"<{len(content) // size}{code}", content)
