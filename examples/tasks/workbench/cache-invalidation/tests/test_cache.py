"""The cache holds what it should, no longer and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from catalogue import Cache


class Loader:
    """Counts the loads; ``during`` runs while a value is on its way."""

    def __init__(self) -> None:
        self.loaded: list[Any] = []
        self.during: Callable[[Any], None] = lambda key: None

    def __call__(self, key: Any) -> Any:
        self.loaded.append(key)
        value = f"{key!r} {len(self.loaded)}"
        self.during(key)
        return value


def test_a_value_is_loaded_once() -> None:
    """The second read is free."""
    loader = Loader()
    cache = Cache(loader)
    assert cache.get("a") == cache.get("a") == "'a' 1"
    assert loader.loaded == ["a"]


def test_empty_values_are_values() -> None:
    """None, zero and the empty tuple are kept like any other."""
    for empty in (None, 0, (), "", False):
        loaded: list[str] = []
        cache: Cache[str, Any] = Cache(lambda key, empty=empty, loaded=loaded: (loaded.append(key), empty)[1])
        assert cache.get("a") == cache.get("a") == empty
        assert loaded == ["a"]


def test_different_keys_stay_apart() -> None:
    """Keys that only look alike when written down are different."""
    loader = Loader()
    cache: Cache[Any, str] = Cache(loader)
    keys = [1, "1", ("a", "b"), "('a', 'b')", None, "None"]
    values = [cache.get(key) for key in keys]
    assert len(set(values)) == len(keys)
    cache.invalidate("1")
    assert cache.get(1) == values[0]
    assert cache.get("1") != values[1]


def test_time_to_live() -> None:
    """Fresh until just before the end, gone at the end; the time counts from the beginning of the load."""
    now = 100.0
    loader = Loader()
    cache = Cache(loader, ttl_s=10, clock=lambda: now)

    def slowly(key: str) -> None:
        nonlocal now
        now += 4

    loader.during = slowly
    assert cache.get("a") == "'a' 1"
    now = 109.9
    assert cache.get("a") == "'a' 1"
    now = 110.0
    assert cache.get("a") == "'a' 2"


def test_reading_does_not_prolong_a_life() -> None:
    """A value that is read often grows old all the same."""
    now = 0.0
    loader = Loader()
    cache = Cache(loader, ttl_s=10, clock=lambda: now)
    for second in range(25):
        now = float(second)
        cache.get("a")
    assert len(loader.loaded) == 3


def test_the_least_recently_used_goes() -> None:
    """Reading counts as use."""
    loader = Loader()
    cache = Cache(loader, max_entries=3)
    for key in "abc":
        cache.get(key)
    cache.get("a")
    cache.get("d")
    loader.loaded.clear()
    for key in "acd":
        cache.get(key)
    assert loader.loaded == []
    cache.get("b")
    assert loader.loaded == ["b"]


def test_renewing_pushes_nothing_out() -> None:
    """A value that is loaded again takes its own place."""
    now = 0.0
    loader = Loader()
    cache = Cache(loader, ttl_s=10, max_entries=2, clock=lambda: now)
    cache.get("a")
    now = 5.0
    cache.get("b")
    now = 12.0
    cache.get("a")
    loader.loaded.clear()
    cache.get("b")
    cache.get("a")
    assert loader.loaded == []


def test_a_value_that_became_invalid_on_its_way_is_not_kept() -> None:
    """It may be returned once; the next read loads again."""
    loader = Loader()
    cache = Cache(loader)
    loader.during = cache.invalidate
    cache.get("a")
    loader.during = lambda key: None
    assert cache.get("a") == "'a' 2"
    assert cache.get("a") == "'a' 2"


def test_other_keys_may_become_invalid_meanwhile() -> None:
    """That is no reason to drop this one."""
    loader = Loader()
    cache = Cache(loader)
    loader.during = lambda key: cache.invalidate("b")
    cache.get("a")
    cache.get("a")
    assert loader.loaded == ["a"]


def test_a_load_within_a_load() -> None:
    """A newer value that was loaded meanwhile is not replaced by the older one."""
    loader = Loader()
    cache = Cache(loader)

    def reload(key: str) -> None:
        loader.during = lambda key: None
        cache.invalidate(key)
        assert cache.get(key) == "'a' 2"

    loader.during = reload
    cache.get("a")
    assert cache.get("a") == "'a' 2"
    assert len(loader.loaded) == 2


def test_exceptions_are_not_kept() -> None:
    """They reach the caller; the next read tries again, and an old value does not come back."""
    now = 0.0
    loader = Loader()
    cache = Cache(loader, ttl_s=10, clock=lambda: now)

    def fail(key: str) -> None:
        raise OSError("the store is away")

    cache.get("a")
    now = 20.0
    loader.during = fail
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            cache.get("a")
    loader.during = lambda key: None
    assert cache.get("a") == "'a' 4"
