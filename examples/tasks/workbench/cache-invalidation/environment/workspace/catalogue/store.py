"""The warehouse's products. Not ours; keep it as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    id: str
    name: str
    category: str
    price_cents: int


class Store:
    """Counts its reads; calls ``listeners`` with a word and a key when the data of a read or write are fixed."""

    def __init__(self) -> None:
        self._products: dict[str, Product] = {}
        self.reads = 0
        self.listeners: list[Callable[[str, str], None]] = []

    def product(self, product_id: str) -> Product | None:
        """The product, if there is one."""
        self.reads += 1
        found = self._products.get(product_id)
        self._tell("product", product_id)
        return found

    def category(self, name: str) -> tuple[Product, ...]:
        """The products of a category, by name."""
        self.reads += 1
        found = sorted((p for p in self._products.values() if p.category == name), key=lambda p: (p.name, p.id))
        self._tell("category", name)
        return tuple(found)

    def save(self, product: Product) -> None:
        """Store a new product, or a new state of one."""
        self._products[product.id] = product
        self._tell("save", product.id)

    def delete(self, product_id: str) -> None:
        """Remove a product; an unknown one is fine."""
        self._products.pop(product_id, None)
        self._tell("delete", product_id)

    def _tell(self, what: str, key: str) -> None:
        for listener in list(self.listeners):
            listener(what, key)
