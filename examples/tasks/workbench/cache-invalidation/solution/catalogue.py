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
        try:
            self._store.save(product)
        finally:
            self._forget(product.id)
            self._categories.invalidate(product.category)

    def delete(self, product_id: str) -> None:
        """Remove a product."""
        try:
            self._store.delete(product_id)
        finally:
            self._forget(product_id)

    def _forget(self, product_id: str) -> None:
        """Forget the product and every list that shows it.

        To be called when the store has changed: before, the old state could be read back.
        """
        self._products.invalidate(product_id)
        self._categories.invalidate_where(lambda products: any(product.id == product_id for product in products))
