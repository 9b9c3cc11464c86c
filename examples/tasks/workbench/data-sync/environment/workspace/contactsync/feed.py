"""The vendor's change feed. Stands for their API; keep it as it is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Entry:
    """One change of one contact. ``updated_at`` is in UTC, ISO 8601, to the second."""

    id: str
    version: int
    updated_at: str
    email: str = ""
    name: str = ""
    deleted: bool = False


class Feed:
    """All entries served so far, in pages."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = sorted(entries, key=lambda entry: (entry.updated_at, entry.id))

    @classmethod
    def load(cls, path: Path) -> Self:
        """The feed in a file with one JSON object a line."""
        with path.open(encoding="utf-8") as lines:
            return cls(Entry(**json.loads(line)) for line in lines)

    def page(self, updated_after: str = "", id_after: str | None = None, limit: int = 50) -> list[Entry]:
        """The next ``limit`` entries after a moment.

        Without ``id_after``: those with a later ``updated_at``. With it: also those of the same moment with a greater
        id.
        """
        found = [entry for entry in self._entries if self._is_after(entry, updated_after, id_after)]
        return found[:limit]

    @staticmethod
    def _is_after(entry: Entry, updated_after: str, id_after: str | None) -> bool:
        if entry.updated_at == updated_after:
            return id_after is not None and entry.id > id_after
        return entry.updated_at > updated_after
