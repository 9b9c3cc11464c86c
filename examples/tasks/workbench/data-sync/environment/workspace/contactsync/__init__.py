"""Copies contacts from the vendor's change feed into the warehouse."""

from contactsync.feed import Entry, Feed
from contactsync.store import Store
from contactsync.sync import sync

__all__ = ["Entry", "Feed", "Store", "sync"]
