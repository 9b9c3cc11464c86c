from __future__ import annotations

from catalogue import Catalogue, Product, Store

PAPER = Product("p1", "Paper", "office", 500)


def test_a_second_read_does_not_ask_the_store() -> None:
    store = Store()
    store.save(PAPER)
    catalogue = Catalogue(store)
    assert catalogue.product("p1") == catalogue.product("p1") == PAPER
    assert catalogue.category("office") == catalogue.category("office") == (PAPER,)
    assert store.reads == 2


def test_a_saved_price_is_shown() -> None:
    store = Store()
    store.save(PAPER)
    catalogue = Catalogue(store)
    catalogue.product("p1")
    cheaper = Product("p1", "Paper", "office", 400)
    catalogue.save(cheaper)
    assert catalogue.product("p1") == cheaper


def test_an_old_value_is_loaded_again() -> None:
    now = 0.0
    store = Store()
    catalogue = Catalogue(store, ttl_s=10, clock=lambda: now)
    catalogue.category("office")
    now = 11.0
    catalogue.category("office")
    assert store.reads == 2
