"""A cache with a time to live and a bounded number of entries."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Calls ``load`` for what it does not hold. ``clock`` returns seconds."""

    def __init__(
        self,
        load: Callable[[K], V],
        *,
        ttl_s: float = 600.0,
        max_entries: int = 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        self._clock = clock
        self._entries: dict[str, tuple[float, V]] = {}

    def get(self, key: K) -> V:
        """The value of ``key``, not older than ``ttl_s``."""
        entry = self._entries.get(str(key))
        if entry and self._clock() - entry[0] <= self._ttl_s and entry[1]:
            return entry[1]
        value = self._load(key)
        if len(self._entries) >= self._max_entries:
            self._entries.pop(next(iter(self._entries)))
        self._entries[str(key)] = (self._clock(), value)
        return value

    def invalidate(self, key: K) -> None:
        """Forget the value of ``key``."""
        self._entries.pop(str(key), None)
