"""The fixed program copes with what the vendor's feed does."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

from contactsync import Entry, Feed, Store, sync

OLD_SCHEMA = """
CREATE TABLE contacts (id TEXT PRIMARY KEY, email TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class Watched(Feed):
    """A feed that counts the pages it serves and fails at the one it is told to."""

    def __init__(self, entries: Iterable[Entry], fail_at: int = 0) -> None:
        super().__init__(entries)
        self.pages = 0
        self._fail_at = fail_at

    def page(self, updated_after: str = "", id_after: str | None = None, limit: int = 50) -> list[Entry]:
        self.pages += 1
        assert self.pages < 500, "the run does not end"
        if self.pages == self._fail_at:
            raise ConnectionError("the vendor's server went away")
        return super().page(updated_after, id_after, limit)


def at(minute: int) -> str:
    return f"2026-05-01T{minute // 60:02}:{minute % 60:02}:00Z"


def contact(number: int, version: int, minute: int, *, deleted: bool = False) -> Entry:
    """Version ``version`` of contact ``number``, delivered at ``minute``."""
    if deleted:
        return Entry(f"c{number:04}", version, at(minute), deleted=True)
    return Entry(f"c{number:04}", version, at(minute), f"{number}.{version}@example.com", f"Name {number}")


def run(feed: Feed, path: Path) -> None:
    store = Store(path)
    try:
        sync(feed, store)
    finally:
        store.close()


def versions(path: Path) -> dict[str, int]:
    """The version of each contact in the warehouse, whose e-mail address must belong to it."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT id, email, version FROM contacts").fetchall()
    assert all(email == f"{int(key[1:])}.{version}@example.com" for key, email, version in rows)
    return {key: version for key, _, version in rows}


def busy_feed() -> list[Entry]:
    """Imports within one second, changes, deletions, late deliveries and a return, over many pages."""
    entries = [contact(n, 1, 1) for n in range(130)]
    entries += [contact(n, 1, 2 + n) for n in range(200, 260)]
    entries += [contact(n, 2, 300) for n in range(0, 130, 2)]
    entries += [contact(n, 2, 301, deleted=True) for n in range(200, 230)]
    entries += [contact(n, 1, 302) for n in range(0, 20)] + [contact(n, 1, 302) for n in range(200, 210)]
    return [*entries, contact(205, 3, 303)]


BUSY = {f"c{n:04}": 1 + (n + 1) % 2 for n in range(130)} | {f"c{n:04}": 1 for n in range(230, 260)} | {"c0205": 3}


def test_no_contact_is_lost_between_pages(tmp_path: Path) -> None:
    """Entries of one moment that fall on two pages all arrive, even if they fill several pages."""
    for size in (49, 50, 51, 99, 100, 101, 260):
        entries = [contact(1, 1, 1), *(contact(n, 1, 2) for n in range(2, size + 2)), contact(size + 2, 1, 3)]
        run(Watched(entries), tmp_path / f"{size}.db")
        assert len(versions(tmp_path / f"{size}.db")) == size + 2


def test_an_old_version_changes_nothing(tmp_path: Path) -> None:
    """A late delivery of version 1 does not undo version 2, in the same run or a later one."""
    entries = [contact(1, 1, 1), contact(1, 2, 2), contact(1, 1, 3)]
    for cut in (1, 2, 3):
        path = tmp_path / f"{cut}.db"
        run(Watched(entries[:cut]), path)
        run(Watched(entries), path)
        assert versions(path) == {"c0001": 2}


def test_a_deleted_contact_goes(tmp_path: Path) -> None:
    """A deletion removes the contact, in the same run or a later one; one never seen is no problem."""
    entries = [contact(1, 1, 1), contact(2, 1, 1), contact(1, 2, 2, deleted=True), contact(3, 4, 3, deleted=True)]
    for cut in (2, 3, 4):
        path = tmp_path / f"{cut}.db"
        run(Watched(entries[:cut]), path)
        run(Watched(entries), path)
        assert versions(path) == {"c0002": 1}


def test_a_late_delivery_does_not_bring_a_contact_back(tmp_path: Path) -> None:
    """The deletion is remembered from run to run, and when it was the first thing heard of the contact."""
    entries = [contact(1, 2, 1), contact(1, 3, 2, deleted=True), contact(2, 5, 2, deleted=True)]
    late = [contact(1, 2, 3), contact(2, 4, 3), contact(1, 1, 4)]
    run(Watched(entries + late), tmp_path / "together.db")
    run(Watched(entries), tmp_path / "apart.db")
    for cut in range(1, len(late) + 1):
        run(Watched(entries + late[:cut]), tmp_path / "apart.db")
    assert versions(tmp_path / "together.db") == versions(tmp_path / "apart.db") == {}


def test_a_late_deletion_is_ignored(tmp_path: Path) -> None:
    """A deletion in version 2 says nothing about version 3."""
    run(Watched([contact(1, 3, 1), contact(1, 2, 2, deleted=True)]), tmp_path / "warehouse.db")
    assert versions(tmp_path / "warehouse.db") == {"c0001": 3}


def test_a_contact_can_come_back(tmp_path: Path) -> None:
    """A higher version without the mark makes a deleted contact live again."""
    entries = [contact(1, 1, 1), contact(1, 2, 2, deleted=True), contact(1, 3, 3)]
    run(Watched(entries), tmp_path / "warehouse.db")
    assert versions(tmp_path / "warehouse.db") == {"c0001": 3}
    run(Watched([*entries, contact(1, 4, 4, deleted=True)]), tmp_path / "warehouse.db")
    assert versions(tmp_path / "warehouse.db") == {}


def test_versions_are_numbers(tmp_path: Path) -> None:
    """Version 10 is newer than version 9."""
    run(Watched([contact(1, 9, 1), contact(1, 10, 2), contact(1, 2, 3)]), tmp_path / "warehouse.db")
    assert versions(tmp_path / "warehouse.db") == {"c0001": 10}


def test_everything_at_once(tmp_path: Path) -> None:
    """A feed with all of it ends in the right state, read in one run or in many."""
    run(Watched(busy_feed()), tmp_path / "one.db")
    ordered = sorted(busy_feed(), key=lambda entry: (entry.updated_at, entry.id))
    for cut in range(0, len(ordered), 17):
        run(Watched(ordered[:cut]), tmp_path / "many.db")
    run(Watched(ordered), tmp_path / "many.db")
    assert versions(tmp_path / "one.db") == versions(tmp_path / "many.db") == BUSY


def test_a_failing_feed_costs_nothing(tmp_path: Path) -> None:
    """Whichever page fails, the next run completes the work."""
    for fail_at in range(1, 7):
        path = tmp_path / f"{fail_at}.db"
        with suppress(ConnectionError):
            run(Watched(busy_feed(), fail_at), path)
        run(Watched(busy_feed()), path)
        assert versions(path) == BUSY


def test_a_run_cut_off_in_the_middle_of_a_page_costs_nothing(tmp_path: Path) -> None:
    """A process that dies while it writes leaves nothing that the next run would take as done."""

    class Torn(list[Entry]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            for number, entry in enumerate(super().__iter__()):
                if number == 30:
                    raise KeyboardInterrupt
                yield entry

    class TornFeed(Watched):
        def page(self, updated_after: str = "", id_after: str | None = None, limit: int = 50) -> list[Entry]:
            entries = super().page(updated_after, id_after, limit)
            return Torn(entries) if self.pages == 3 else entries

    path = tmp_path / "warehouse.db"
    with suppress(KeyboardInterrupt):
        run(TornFeed(busy_feed()), path)
    run(Watched(busy_feed()), path)
    assert versions(path) == BUSY


def test_a_run_with_nothing_new_asks_once(tmp_path: Path) -> None:
    """The position is kept: the second run asks for one page and changes nothing."""
    run(Watched(busy_feed()), tmp_path / "warehouse.db")
    feed = Watched(busy_feed())
    run(feed, tmp_path / "warehouse.db")
    assert feed.pages == 1
    assert versions(tmp_path / "warehouse.db") == BUSY


def test_a_database_of_the_old_program_is_put_right(tmp_path: Path) -> None:
    """Missing, surviving and outdated contacts of an old database are mended by the first run, even after a failure."""
    for fail_at in range(5):
        path = tmp_path / f"{fail_at}.db"
        with closing(sqlite3.connect(path)) as db:
            db.executescript(OLD_SCHEMA)
            old = [contact(n, 1, 1) for n in range(50)] + [contact(n, 1, 2) for n in range(200, 260)]
            rows = [(entry.id, entry.email, entry.name, entry.version) for entry in old]
            db.executemany("INSERT INTO contacts VALUES (?, ?, ?, ?)", rows)
            db.execute("INSERT INTO state VALUES ('position', ?)", (at(303),))
            db.commit()
        with suppress(ConnectionError):
            run(Watched(busy_feed(), fail_at), path)
        run(Watched(busy_feed()), path)
        assert versions(path) == BUSY
        again = Watched(busy_feed())
        run(again, path)
        assert again.pages == 1
