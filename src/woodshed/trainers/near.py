"""Decontamination: tasks that stand in a benchmark, or nearly do, are found by the n-grams that they share. Pure.

The share is exact, over hashed n-grams of words (n = 8, as in the decontamination of published code models); sets of
hashes are small enough that nothing has to be estimated, so one input always gives one answer. Of scripts that put no
spaces between words each character counts as one.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

NGRAM = 8
LEAST = 4
"""Words that a text has at least which is looked for within longer ones: less stands in every other text by chance."""
_UNSPACED = ("\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
             "\uf900-\ufaff\U00020000-\U0003ffff")
"""Unicode's blocks of Thai, Lao, Burmese, Khmer, Kana and Han."""
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


@dataclass(frozen=True, slots=True)
class Match:
    """``item`` is the benchmark's own that is nearest; ``share`` of the smaller one's n-grams stand in both."""

    item: str
    share: float


@dataclass(slots=True)
class Benchmark:
    """Texts that nothing of an export may resemble. ``_short`` are the lengths of those shorter than an n-gram."""

    _items: dict[str, int] = field(default_factory=dict)
    _holders: dict[bytes, list[str]] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)
    _short: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, texts: Iterable[tuple[str, str]]) -> Benchmark:
        """From (name, text) of each item. One of the same name adds to it."""
        made = cls()
        for name, text in texts:
            made.add(name, text)
        return made

    def add(self, name: str, text: str) -> None:
        """One more item."""
        words = _words(text)
        grams = _grams(words, min(NGRAM, len(words)))
        self._items[name] = self._items.get(name, 0) + len(grams)
        self._texts[name] = f"{self._texts.get(name, '')} {' '.join(words)} "
        if LEAST <= len(words) < NGRAM:
            self._short.add(len(words))
        for gram in grams:
            self._holders.setdefault(gram, []).append(name)

    def __len__(self) -> int:
        return len(self._items)

    def nearest(self, text: str) -> Match | None:
        """The item that shares most with the text, or stands in it, or in which it stands; None where none does."""
        words = _words(text)
        own = _grams(words, min(NGRAM, len(words)))
        shorter = {gram for length in self._short if length < len(words) for gram in _grams(words, length)}
        counts = Counter(name for gram in own | shorter for name in set(self._holders.get(gram, ())))
        shares = [(min(1.0, count / min(len(own), self._items[name])), name) for name, count in counts.items()]
        if LEAST <= len(words) < NGRAM:
            within = f" {' '.join(words)} "
            shares += [(1.0, name) for name, whole in self._texts.items() if within in whole]
        return max((Match(name, share) for share, name in shares), key=lambda one: (one.share, one.item), default=None)


def repeated(texts: Mapping[str, str], near: float) -> dict[str, Match]:
    """Which of these texts resemble one before them that resembles none itself, and by how much."""
    kept, found = Benchmark(), dict[str, Match]()
    for name, text in texts.items():
        match = kept.nearest(text)
        if match is not None and match.share >= near:
            found[name] = match
        else:
            kept.add(name, text)
    return found


def _words(text: str) -> list[str]:
    """Words without case and signs, in Unicode's compatible form, so that wide letters are the same ones."""
    return [word.lower() for word in _WORD.findall(unicodedata.normalize("NFKC", text))]


def _grams(words: Sequence[str], length: int) -> set[bytes]:
    """Hashes of each so many words in a row."""
    return {blake2b(" ".join(words[at: at + length]).encode("utf-8", "replace"), digest_size=8).digest()
            for at in range(len(words) - length + 1)} if words else set()
