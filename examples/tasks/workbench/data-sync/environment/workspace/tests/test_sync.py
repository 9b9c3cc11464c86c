from __future__ import annotations

from pathlib import Path

from contactsync import Entry, Feed, Store, sync


def test_new_contacts_are_copied(tmp_path: Path) -> None:
    store = Store(tmp_path / "warehouse.db")
    feed = Feed(Entry(f"c{n:03}", 1, f"2026-01-01T00:{n:02}:00Z", f"{n}@example.com") for n in range(60))
    assert sync(feed, store) == 60
    assert store.count() == 60
    store.close()


def test_a_second_run_reads_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "warehouse.db")
    feed = Feed([Entry("c1", 1, "2026-01-01T00:00:00Z", "1@example.com")])
    sync(feed, store)
    assert sync(feed, store) == 0
    store.close()


def test_a_change_is_copied(tmp_path: Path) -> None:
    store = Store(tmp_path / "warehouse.db")
    first = Entry("c1", 1, "2026-01-01T00:00:00Z", "old@example.com")
    sync(Feed([first]), store)
    sync(Feed([first, Entry("c1", 2, "2026-01-02T00:00:00Z", "new@example.com")]), store)
    assert store.count() == 1
    store.close()
