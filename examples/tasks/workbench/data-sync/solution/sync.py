"""Read what is new in the feed and store it."""

from __future__ import annotations

from contactsync.feed import Feed
from contactsync.store import Store


def sync(feed: Feed, store: Store) -> int:
    """Copy all new entries; return how many were read."""
    read = 0
    while entries := feed.page(*store.position()):
        store.put_page(entries)
        read += len(entries)
    return read
