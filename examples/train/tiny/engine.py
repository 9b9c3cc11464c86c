"""The engine: answers prompts in batches that change from one id to the next, in a thread of its own.

What a slot holds is kept after its answer: a prompt that begins with it, as the next turn of a conversation does, costs
only what is new.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tiny.network import Network, Past
from tiny.text import END

_IDLE_S = 0.05
_CLOSED = "the engine is closed"


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt and how to sample from what may follow it; temperature 0 takes the likeliest id."""

    prompt: tuple[int, ...]
    most: int
    temperature: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Given:
    """The ids that were sampled, the end mark included, each with its logprob in the distribution it was drawn from.

    ``version`` is that of the weights, from the first id to the last.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: str
    version: str


@dataclass
class _Work:
    asked: Asked
    done: Future[Given]
    slot: int = -1
    dice: random.Random = field(default_factory=random.Random)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Engine:
    """Serves one network; ``slots`` prompts at once. Threads may ask as they like; ``close`` ends it."""

    def __init__(self, network: Network, *, version: str = "0", slots: int = 16) -> None:
        self.network, self.version = network.eval(), version
        self._past = Past(network.shape, slots)
        self._held: list[list[int]] = [[] for _ in range(slots)]
        self._free = list(range(slots))
        self._waiting: deque[_Work] = deque()
        self._weights: tuple[Mapping[str, Any], str, Future[None]] | None = None
        self._news = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="tiny-engine", daemon=True)
        self._thread.start()

    def ask(self, asked: Asked) -> Future[Given]:
        """The answer, in time. Raises ValueError for a prompt that leaves no room, RuntimeError where it is closed."""
        if not asked.prompt or len(asked.prompt) + 1 > self.network.shape.context:
            raise ValueError(f"This model's maximum context length is {self.network.shape.context} tokens. However, "
                             f"the prompt has {len(asked.prompt)} tokens, and one must be left to answer.")
        work = _Work(asked, _promised(), dice=random.Random(asked.seed))  # noqa: S311 (repeatable, nothing secret)
        with self._news:
            if self._closed:
                raise RuntimeError(_CLOSED)
            self._waiting.append(work)
            self._news.notify()
        return work.done

    def load(self, weights: Mapping[str, Any], version: str) -> Future[None]:
        """Take these weights once the answers that are being written are ended; later prompts wait for it.

        Raises RuntimeError where the engine is closed.
        """
        done: Future[None] = _promised()
        with self._news:
            if self._closed:
                raise RuntimeError(_CLOSED)
            self._weights = (weights, version, done)
            self._news.notify()
        return done

    def close(self) -> None:
        """End; what was not answered fails."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join()

    def _serve(self) -> None:
        active: list[_Work] = []
        while True:
            with self._news:
                while not (self._waiting or self._weights or active or self._closed):
                    self._news.wait(_IDLE_S)
                if self._closed:
                    break
                swap = self._weights if not active else None
                fresh = [] if self._weights else self._admitted()
            if swap is not None:
                self._swap(*swap)
                continue
            try:
                active = self._step(active, fresh)
            except Exception as error:  # nobody may wait for ever; the next batch may do
                for work in (*active, *fresh):
                    if not work.done.done():
                        work.done.set_exception(error)
                        self._free.append(work.slot)
                active = []
        left: list[Future[Any]] = [work.done for work in (*active, *self._waiting)]
        for done in (*left, *([self._weights[2]] if self._weights else [])):
            done.set_exception(RuntimeError(_CLOSED))

    def _admitted(self) -> list[_Work]:
        fresh = []
        while self._waiting and self._free:
            work = self._waiting.popleft()
            work.slot = max(self._free, key=lambda slot: (_shared(self._held[slot], work.asked.prompt),
                                                          -len(self._held[slot])))
            self._free.remove(work.slot)
            fresh.append(work)
        return fresh

    def _swap(self, weights: Mapping[str, Any], version: str, done: Future[None]) -> None:
        try:
            self.network.load_state_dict(weights)
        except (RuntimeError, KeyError) as error:
            done.set_exception(ValueError(f"these weights do not fit: {error}"))
        else:
            self.version = version
            self._held = [[] for _ in self._held]
            done.set_result(None)
        with self._news:
            self._weights = None

    def _step(self, active: list[_Work], fresh: list[_Work]) -> list[_Work]:
        """One id more for each of them; those that go on."""
        gone = []
        if fresh:
            parts = []
            for work in fresh:
                prompt = work.asked.prompt
                kept = min(_shared(self._held[work.slot], prompt), len(prompt) - 1)
                parts.append((list(prompt[kept:]), kept))
                self._held[work.slot] = list(prompt)
            gone += self._sampled(fresh, self._further(fresh, parts))
        if active:
            parts = [([work.ids[-1]], len(self._held[work.slot]) - 1) for work in active]
            gone += self._sampled(active, self._further(active, parts))
        return [work for work in (*active, *fresh) if work not in gone]

    def _further(self, works: list[_Work], parts: list[tuple[list[int], int]]) -> Tensor:
        longest = max(len(ids) for ids, _ in parts)
        ids = torch.tensor([[*ids, *[END] * (longest - len(ids))] for ids, _ in parts])
        lengths, starts = torch.tensor([len(one) for one, _ in parts]), torch.tensor([at for _, at in parts])
        return self.network.further(ids, starts, lengths, torch.tensor([work.slot for work in works]), self._past)

    def _sampled(self, works: list[_Work], logprobs: Tensor) -> list[_Work]:
        """Draw an id for each; those that are ended by it."""
        heat = torch.tensor([work.asked.temperature or 1.0 for work in works])[:, None]
        logprobs = torch.log_softmax(logprobs / heat, -1)
        lots = torch.tensor([work.dice.random() for work in works])[:, None]
        sums = logprobs.exp().cumsum(-1)
        drawn = torch.searchsorted(sums, lots * sums[:, -1:], right=True).clamp(max=logprobs.shape[1] - 1)[:, 0]
        greedy = torch.tensor([work.asked.temperature == 0 for work in works])
        chosen = torch.where(greedy, logprobs.argmax(-1), drawn)
        told = logprobs.gather(1, chosen[:, None])[:, 0]
        return [work for work, one, logprob in zip(works, chosen.tolist(), told.tolist(), strict=True)
                if self._ended(work, one, logprob)]

    def _ended(self, work: _Work, one: int, logprob: float) -> bool:
        work.ids.append(one)
        work.logprobs.append(min(0.0, logprob))
        self._held[work.slot].append(one)
        full = len(work.ids) >= work.asked.most or len(self._held[work.slot]) >= self.network.shape.context
        if one != END and not full:
            return False
        # The last id has no keys yet: nothing was asked of it.
        self._held[work.slot].pop()
        self._free.append(work.slot)
        work.done.set_result(Given(tuple(work.ids), tuple(work.logprobs), "stop" if one == END else "length",
                                   self.version))
        return True


def _promised() -> Future[Any]:
    """A future that only its maker ends: who asked and went away cannot cancel it, which would end the thread."""
    done: Future[Any] = Future()
    done.set_running_or_notify_cancel()
    return done


def _shared(one: list[int], other: tuple[int, ...]) -> int:
    """How many ids both begin with."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
