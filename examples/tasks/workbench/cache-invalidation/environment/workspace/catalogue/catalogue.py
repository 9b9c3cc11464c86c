"""Reads through two caches, saves to the store."""

from __future__ import annotations

import time
from collections.abc import Callable

from catalogue.cache import Cache
from catalogue.store import Product, Store


class Catalogue:
    """The products of ``store``."""

    def __init__(self, store: Store, *, ttl_s: float = 600.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._products = Cache(store.product, ttl_s=ttl_s, clock=clock)
        self._categories = Cache(store.category, ttl_s=ttl_s, clock=clock)

    def product(self, product_id: str) -> Product | None:
        """The product, if there is one."""
        return self._products.get(product_id)

    def category(self, name: str) -> tuple[Product, ...]:
        """The products of a category, by name."""
        return self._categories.get(name)

    def save(self, product: Product) -> None:
        """Store a new product, or a new state of one."""
        self._products.invalidate(product.id)
        self._categories.invalidate(product.category)
        self._store.save(product)

    def delete(self, product_id: str) -> None:
        """Remove a product."""
        self._products.invalidate(product_id)
        self._store.delete(product_id)
