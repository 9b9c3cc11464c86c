"""Text as ids: words that were seen often enough are one id each, everything else its bytes. Nothing is ever lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

SPECIAL = ("<end>", "<tools>", "<user>", "<model>", "<result>", "<call>", "<arg>", "<is>")
"""Marks of a conversation. Text never becomes one of them, whatever it says."""
END, TOOLS, USER, MODEL, RESULT, CALL, ARG, IS = range(len(SPECIAL))
_BYTES = len(SPECIAL)
_PIECE = re.compile(r"\.[A-Za-z]{2,4}\b|[A-Za-z]+|\s|.", re.DOTALL)


@dataclass(frozen=True)
class Vocabulary:
    """``words`` are the pieces with an id of their own, after the marks and the 256 bytes."""

    words: tuple[str, ...] = ()
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ids = {word: _BYTES + 256 + number for number, word in enumerate(self.words)}
        object.__setattr__(self, "_ids", ids)  # frozen: it is a function of the words

    @classmethod
    def of(cls, texts: Iterable[str], *, size: int, least: int = 2) -> Vocabulary:
        """At most ``size`` ids for ``texts``: those of pieces that occur ``least`` times, the most frequent first."""
        counts = Counter(piece for text in texts for piece in _PIECE.findall(text) if len(piece) > 1)
        ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
        return cls(tuple(piece for piece, count in ranked if count >= least)[: max(0, size - _BYTES - 256)])

    def __len__(self) -> int:
        return _BYTES + 256 + len(self.words)

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``; :meth:`decode` gives it back."""
        ids: list[int] = []
        for piece in _PIECE.findall(text):
            known = self._ids.get(piece)
            ids += [known] if known is not None else [_BYTES + byte for byte in piece.encode("utf-8", "surrogatepass")]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, marks as they are named; bytes that are no UTF-8 become replacement characters."""
        return b"".join(self._bytes(one) for one in ids).decode("utf-8", "replace")

    def _bytes(self, one: int) -> bytes:
        if one < _BYTES:
            return SPECIAL[one].encode()
        if one < _BYTES + 256:
            return bytes([one - _BYTES])
        return self.words[one - _BYTES - 256].encode()
