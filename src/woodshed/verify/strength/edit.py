"""Edit: one replacement in a text. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """``new`` in the place of the bytes from ``start`` to ``end``, as ``operator`` has it."""

    operator: str
    start: int
    end: int
    new: bytes

    def applied(self, text: bytes) -> bytes:
        """The text with it."""
        return text[: self.start] + self.new + text[self.end :]
