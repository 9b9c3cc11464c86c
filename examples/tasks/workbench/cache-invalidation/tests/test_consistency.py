"""After a change, nothing shows the old state, and what was not affected is still cached."""

from __future__ import annotations

from random import Random

from catalogue import Catalogue, Product, Store


def paper(category: str = "office", price_cents: int = 500) -> Product:
    return Product("p1", "Paper", category, price_cents)


PENS = Product("p2", "Pens", "office", 120)
CAKE = Product("p3", "Cake", "kitchen", 900)


def shop() -> tuple[Store, Catalogue]:
    """Three products in two categories, all of it cached."""
    store = Store()
    for product in (paper(), PENS, CAKE):
        store.save(product)
    catalogue = Catalogue(store)
    read_all(catalogue)
    store.reads = 0
    return store, catalogue


def read_all(catalogue: Catalogue) -> None:
    for key in ("p1", "p2", "p3", "p4"):
        catalogue.product(key)
    for name in ("office", "kitchen", "garden"):
        catalogue.category(name)


def test_a_new_price_is_shown_everywhere() -> None:
    """In the product and in its category."""
    _, catalogue = shop()
    catalogue.save(paper(price_cents=400))
    assert catalogue.product("p1") == paper(price_cents=400)
    assert catalogue.category("office") == (paper(price_cents=400), PENS)


def test_a_moved_product_leaves_its_category() -> None:
    """Both lists are right at once, although the old category is not named."""
    _, catalogue = shop()
    catalogue.save(paper("garden"))
    assert catalogue.category("office") == (PENS,)
    assert catalogue.category("garden") == (paper("garden"),)


def test_a_moved_product_leaves_its_category_when_only_the_list_is_cached() -> None:
    """The category it was in is known even if the product itself was never read."""
    store = Store()
    store.save(paper())
    catalogue = Catalogue(store)
    assert catalogue.category("office") == (paper(),)
    catalogue.save(paper("garden"))
    assert catalogue.category("office") == ()


def test_a_deleted_product_is_gone() -> None:
    """From its category, too; deleting what is unknown is fine."""
    _, catalogue = shop()
    catalogue.delete("p1")
    catalogue.delete("p9")
    assert catalogue.product("p1") is None
    assert catalogue.category("office") == (PENS,)


def test_a_new_product_appears() -> None:
    """Although its absence was cached."""
    _, catalogue = shop()
    seeds = Product("p4", "Seeds", "garden", 50)
    catalogue.save(seeds)
    assert catalogue.product("p4") == seeds
    assert catalogue.category("garden") == (seeds,)


def test_what_is_not_affected_stays_cached() -> None:
    """A change in one category costs no read of another."""
    store, catalogue = shop()
    catalogue.save(paper(price_cents=400))
    store.reads = 0
    for key in ("p2", "p3", "p4"):
        catalogue.product(key)
    for name in ("kitchen", "garden"):
        catalogue.category(name)
    assert store.reads == 0


def test_absence_is_cached() -> None:
    """No product and no list are read twice."""
    store, catalogue = shop()
    read_all(catalogue)
    assert store.reads == 0


def test_a_save_during_a_load_is_not_undone() -> None:
    """Product and list that were on their way when the price changed are not kept."""
    for read in (lambda catalogue: catalogue.product("p1"), lambda catalogue: catalogue.category("office")):
        store = Store()
        store.save(paper())
        catalogue = Catalogue(store)

        def change(what: str, key: str, store: Store = store, catalogue: Catalogue = catalogue) -> None:
            store.listeners.clear()
            catalogue.save(paper(price_cents=400))

        store.listeners.append(change)
        read(catalogue)
        assert catalogue.product("p1") == paper(price_cents=400)
        assert catalogue.category("office") == (paper(price_cents=400),)


def test_a_move_during_a_load_is_not_undone() -> None:
    """The list of the old category was read before the move and must not stay."""
    store = Store()
    store.save(paper())
    catalogue = Catalogue(store)

    def move(what: str, key: str) -> None:
        store.listeners.clear()
        catalogue.save(paper("garden"))

    store.listeners.append(move)
    catalogue.category("office")
    assert catalogue.category("office") == ()
    assert catalogue.category("garden") == (paper("garden"),)


def test_reads_while_the_store_saves_do_no_harm() -> None:
    """Whoever reads everything in the middle of a save leaves nothing old behind."""
    for change in (lambda c: c.save(paper("garden", 1)), lambda c: c.delete("p1")):
        store, catalogue = shop()
        store.listeners.append(lambda what, key, c=catalogue: read_all(c) if what in ("save", "delete") else None)
        change(catalogue)
        store.listeners.clear()
        assert catalogue.product("p1") == store.product("p1")
        assert catalogue.category("office") == store.category("office")
        assert catalogue.category("garden") == store.category("garden")


def test_any_sequence_of_changes_is_seen() -> None:
    """Reads and changes in random order always agree with the store."""
    random = Random(5)
    store = Store()
    catalogue = Catalogue(store)
    for _ in range(3_000):
        key = f"p{random.randrange(6)}"
        choice = random.random()
        if choice < 0.2:
            catalogue.save(Product(key, random.choice("AB"), random.choice(["x", "y", "z"]), random.randrange(100)))
        elif choice < 0.25:
            catalogue.delete(key)
        else:
            name = random.choice(["x", "y", "z"])
            assert catalogue.product(key) == store.product(key)
            assert catalogue.category(name) == store.category(name)
