"""A cache with a time to live and a bounded number of entries."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Calls ``load`` for what it does not hold. ``clock`` returns seconds.

    A load that is under way when its key is invalidated is not kept.
    """

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
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()  # the least recently used first
        self._loading: dict[K, list[object]] = {}  # the loads under way that may still be kept

    def get(self, key: K) -> V:
        """The value of ``key``, not older than ``ttl_s``."""
        began = self._clock()
        if key in self._entries:
            loaded, value = self._entries[key]
            if began - loaded < self._ttl_s:
                self._entries.move_to_end(key)
                return value
            del self._entries[key]
        this_load = object()
        self._loading.setdefault(key, []).append(this_load)
        try:
            value = self._load(key)
            if this_load in self._loading.get(key, []):
                self._keep(key, began, value)
            return value
        finally:
            self._forget_load(key, this_load)

    def invalidate(self, key: K) -> None:
        """Forget the value of ``key``, also one that is being loaded."""
        self._entries.pop(key, None)
        self._loading.pop(key, None)

    def invalidate_where(self, is_old: Callable[[V], bool]) -> None:
        """Forget the values that ``is_old`` names, and all that are being loaded, since nobody can tell yet."""
        for key in [key for key, (_, value) in self._entries.items() if is_old(value)]:
            del self._entries[key]
        self._loading.clear()

    def _keep(self, key: K, began: float, value: V) -> None:
        self._entries[key] = (began, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def _forget_load(self, key: K, load: object) -> None:
        loads = self._loading.get(key, [])
        if load in loads:
            loads.remove(load)
        if not loads:
            self._loading.pop(key, None)
