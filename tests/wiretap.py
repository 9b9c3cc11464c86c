"""Stands between a real model server and us: keeps what the server truly answered, and loses some of it on the way."""

from __future__ import annotations

import json
import random
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from loopback import Asked, listening


@dataclass(frozen=True)
class Answered:
    """One answer of the real server. ``delivered`` is False where it never got whole to whoever asked."""

    seed: int
    answer: Mapping[str, Any]
    delivered: bool


@dataclass
class Wiretap:
    """``lost`` of the answers are lost after they were generated, in every way that they can be."""

    upstream: str
    lost: float = 0.0
    log: list[Answered] = field(default_factory=list)
    url: str = ""
    _chance: random.Random = field(default_factory=lambda: random.Random(7))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def delivered(self, seeds: Sequence[int]) -> list[Mapping[str, Any]]:
        """What was answered for these seeds and arrived, in their order."""
        by = {one.seed: one.answer for one in self.log if one.delivered}
        return [by[seed] for seed in seeds if seed in by]

    def forwarded(self, path: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        request = urllib.request.Request(self.upstream + path, body, dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def loss(self, body: bytes, content: bytes) -> str | None:
        """How this answer is lost, if it is; it is kept here in any case."""
        with self._lock:
            loss = self._chance.choice(("fails", "cut", "half")) if self._chance.random() < self.lost else None
            self.log.append(Answered(json.loads(body).get("seed", 0), json.loads(content), loss is None))
        return loss


@contextmanager
def tapped(upstream: str, *, lost: float = 0.0) -> Iterator[Wiretap]:
    """A wiretap before the server whose root is ``upstream``; ``url`` is its address, ending in /v1."""
    tap = Wiretap(upstream, lost)

    def kept(asked: Asked) -> dict[str, str]:
        return {name: asked.headers[name] for name in ("Authorization", "Content-Type") if name in asked.headers}

    def get(asked: Asked) -> None:
        status, content = tap.forwarded(asked.path, None, kept(asked))
        asked.say(content, status)

    def post(asked: Asked) -> None:
        body = asked.body()
        status, content = tap.forwarded(asked.path, body, kept(asked))
        loss = tap.loss(body, content) if status == 200 and asked.path.endswith("/completions") else None
        if loss == "fails":
            asked.say(b'{"error": "it broke after it had generated"}', 500)
        elif loss == "cut":
            asked.close_connection = True
        else:
            asked.say(content, status, part=len(content) // 2 if loss == "half" else None)

    with listening(post, get) as url:
        tap.url = f"{url}/v1"
        yield tap
