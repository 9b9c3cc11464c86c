"""A server in vLLM's shape that really tokenises, and keeps a log of what it generated: the truth for tests of capture.

It stands in for no real server: what vLLM or llama.cpp do is tested against themselves.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from loopback import Asked, listening
from woodshed.store.blobs import Blobs

START, END = 256, 257
_MERGES = ["<tool_call>", "</tool_call>", "assistant", "system", "user", "tool", "name", "arguments", "command",
           "echo ", "hello", "world", " the", "th", "in", "er", "\n\n", '": "', '"}', "ing", "and", "on", "    "]
"""Words with an id of their own. A text may be made of them or of its bytes: ids do not follow from text."""
VOCABULARY = 300 + len(_MERGES)
_CANONICAL = re.compile("|".join(map(re.escape, sorted(_MERGES, key=len, reverse=True))) + "|.", re.DOTALL)

Plays = Callable[[Sequence[Mapping[str, Any]], random.Random], str]
"""What the model writes upon a conversation; calls of tools as ``call`` writes them."""


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def encoded(text: str, chance: random.Random | None = None) -> list[int]:
    """Ids of a text. With ``chance`` half the texts have words made of their bytes, as a sampler may well choose."""
    ids: list[int] = []
    apart = 0.2 if chance is not None and chance.random() < 0.5 else 0.0
    for piece in _CANONICAL.findall(text):
        if piece in _MERGES and not (chance is not None and chance.random() < apart):
            ids.append(300 + _MERGES.index(piece))
        else:
            ids += piece.encode()
    return ids


def rendered(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """The prompt's ids, by a template in the manner of ChatML."""
    ids: list[int] = []
    for message in messages:
        text = str(message.get("content") or "")
        for one in message.get("tool_calls") or ():
            function = one["function"]
            text += call(function["name"], **json.loads(function["arguments"]))
        ids += [START, *encoded(f"{message['role']}\n{text}"), END, *encoded("\n")]
    return [*ids, START, *encoded("assistant\n")]


def reader(blobs: Blobs) -> Callable[[str], bytes]:
    """Opens blobs, and closes them."""
    def read(sha256: str) -> bytes:
        with blobs.open(sha256) as file:
            return file.read()

    return read


@dataclass(frozen=True)
class Generation:
    """One thing that was sampled. ``delivered`` is False where the answer never got whole to whoever asked."""

    seed: int
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    logprobs: tuple[float, ...]
    delivered: bool
    body: Mapping[str, Any]


@dataclass
class TokenServer:
    """What is played, how often an answer is lost (``lost`` of them, in every way that it can be), and the log."""

    plays: Plays
    lost: float = 0.0
    told: Mapping[str, Any] = field(default_factory=dict)
    """Takes the place of what an answer tells, for servers that tell it wrongly."""
    log: list[Generation] = field(default_factory=list)
    context_tokens: int | None = None
    """A longer conversation is refused, as real servers do."""
    url: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _chance: random.Random = field(default_factory=lambda: random.Random(7))

    @property
    def model(self) -> str:
        """As --model wants it."""
        return f"tiny@{self.url}"

    def delivered(self, seeds: Sequence[int]) -> list[Generation]:
        """What was sampled with these seeds and arrived, in their order."""
        by = {one.seed: one for one in self.log if one.delivered}
        return [by[seed] for seed in seeds if seed in by]

    def answer(self, body: Mapping[str, Any]) -> tuple[bytes, str | None]:
        """The answer to a request, and in which way it is lost, if it is."""
        seed = int(body.get("seed", 0))
        with self._lock:
            loss = self._chance.choice(("fails", "cut", "half")) if self._chance.random() < self.lost else None
            chance = random.Random(f"{seed}-{len(self.log)}")
            prompt = rendered(body["messages"])
            if self.context_tokens is not None and len(prompt) > self.context_tokens:
                return b'{"error": "this is longer than the maximum context length"}', "full"
            text = self.plays(body["messages"], random.Random(seed))[: int(body.get("max_tokens", 1 << 20))]
            completion = [*encoded(text, chance), END]
            logprobs = [-chance.random() * 3 for _ in completion]
            self.log.append(Generation(seed, tuple(prompt), tuple(completion), tuple(logprobs), loss is None, body))
        return json.dumps(_told(prompt, completion, logprobs, text) | dict(self.told)).encode(), loss


def _told(prompt: list[int], completion: list[int], logprobs: list[float], text: str) -> dict[str, Any]:
    calls = [json.loads(found) for found in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", text, re.DOTALL)]
    message: dict[str, Any] = {"role": "assistant", "content": re.sub(r"<tool_call>.*", "", text, flags=re.DOTALL)}
    if calls:
        message["tool_calls"] = [
            {"id": f"c{len(prompt)}-{number}", "type": "function",
             "function": {"name": one["name"], "arguments": json.dumps(one["arguments"], ensure_ascii=False)}}
            for number, one in enumerate(calls)]
    return {
        "object": "chat.completion", "prompt_token_ids": prompt,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop",
                     "token_ids": completion,
                     "logprobs": {"content": [{"token": "", "logprob": one} for one in logprobs]}}],
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(completion)},
    }


@contextmanager
def tokens_served(
    plays: Plays, *, lost: float = 0.0, told: Mapping[str, Any] | None = None, context_tokens: int | None = None
) -> Iterator[TokenServer]:
    """The server, on the loopback."""
    made = TokenServer(plays, lost, told or {}, context_tokens=context_tokens)

    def get(asked: Asked) -> None:
        asked.say(json.dumps({"data": [{"id": "tiny", "object": "model", "owned_by": "vllm"}]}).encode())

    def post(asked: Asked) -> None:
        content, loss = made.answer(json.loads(asked.body()))
        if loss == "full":
            asked.say(content, 400)
        elif loss == "fails":
            asked.say(b'{"error": "out of memory"}', 500)
        elif loss == "cut":
            asked.close_connection = True
        else:
            asked.say(content, part=len(content) // 2 if loss == "half" else None)

    with listening(post, get) as url:
        made.url = f"{url}/v1"
        yield made
