"""Room: how much of a model's window a conversation may take. Tokens throughout."""

from __future__ import annotations

from woodshed.harness.tokens import Gauge, weigh

_ANSWER = 64  # the least room for an answer that can hold a call
_MARGIN = 1.08  # weights are no tokenizer
_SPARE = 16
_AFTER = 0.6  # of the room, after leaving things out: not every turn again, so that the server's prompt cache holds
_SUMMARY = 6  # the part of the window that the summary of what was left out may take
_SUMMARY_UNKNOWN = 2_000
_OUTPUT = 4  # the part of the window that the outputs of one turn may take


class Room:
    """``window`` is None where the model's is not known: then all is kept until the server says that it is too long."""

    def __init__(self, window: int | None, answer: int) -> None:
        self._window, self._answer = window, answer

    def answer(self, tokens_left: int | None) -> int:
        """The longest answer to ask for, by sampling and budget."""
        return min(self._answer, tokens_left or self._answer)

    def goal(self, tokens: int, answer: int) -> tuple[int, int] | None:
        """What ``tokens`` of conversation should come down to, and what they must; None where they fit."""
        if self._window is None:
            return None
        room = self._window - min(answer, self._window // 2) - _SPARE
        return None if tokens * _MARGIN <= room else (int(room * _AFTER), int(room / _MARGIN))

    def left(self, tokens: int, answer: int) -> int:
        """How long the answer to ``tokens`` of conversation may be."""
        if self._window is None:
            return answer
        return min(answer, max(_ANSWER, self._window - int(_MARGIN * tokens) - _SPARE))

    @property
    def summary(self) -> int:
        """The most that stands for what was left out."""
        return _SUMMARY_UNKNOWN if self._window is None else self._window // _SUMMARY

    def characters(self, text: str, gauge: Gauge, outputs: int, most: int) -> int:
        """Characters of ``text`` to show as one of ``outputs`` of a turn, at most ``most``."""
        if self._window is None or not text:
            return most
        room = max(1, self._window // _OUTPUT // max(1, outputs))
        tokens = gauge.tokens(weigh(text))
        return most if tokens <= room else min(most, len(text) * room // tokens)
