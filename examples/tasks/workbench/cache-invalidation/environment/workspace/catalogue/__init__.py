"""Products and categories, cached."""

from catalogue.cache import Cache
from catalogue.catalogue import Catalogue
from catalogue.store import Product, Store

__all__ = ["Cache", "Catalogue", "Product", "Store"]
