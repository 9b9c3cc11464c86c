"""Decontamination: tasks that stand in a benchmark, or nearly do, are found by the n-grams that they share. Pure.

The share is exact, over hashed n-grams of words (n = 8, as in the decontamination of published code models); sets of
hashes are small enough that nothing has to be estimated, so one input always gives one answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

NGRAM = 8
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Match:
    """``item`` is the benchmark's own that is nearest; ``share`` of the smaller one's n-grams stand in both."""

    item: str
    share: float


@dataclass(slots=True)
class Benchmark:
    """Texts that nothing of an export may resemble."""

    _items: dict[str, int] = field(default_factory=dict)
    _holders: dict[bytes, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Iterable[tuple[str, str]]) -> Benchmark:
        """From (name, text) of each item. One of the same name adds to it."""
        made = cls()
        for name, text in texts:
            grams = _grams(text)
            made._items[name] = made._items.get(name, 0) + len(grams)
            for gram in grams:
                made._holders.setdefault(gram, []).append(name)
        return made

    def __len__(self) -> int:
        return len(self._items)

    def nearest(self, text: str) -> Match | None:
        """The item that shares most with the text; None where none shares anything."""
        grams = _grams(text)
        counts = Counter(name for gram in grams for name in set(self._holders.get(gram, ())))
        shares = [(count / min(len(grams), self._items[name]), name) for name, count in counts.items()]
        if not shares:
            return None
        share, name = max(shares, key=lambda one: (one[0], one[1]))
        return Match(name, share)


def _grams(text: str) -> set[bytes]:
    """Hashes of each n words in a row, without case and signs; of a shorter text the hash of all its words."""
    words = [word.lower() for word in _WORD.findall(text)]
    if not words:
        return set()
    return {blake2b(" ".join(words[at: at + NGRAM]).encode("utf-8", "replace"), digest_size=8).digest()
            for at in range(max(1, len(words) - NGRAM + 1))}
