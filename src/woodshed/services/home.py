"""Home: one opened state folder, with the store and the blobs in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from woodshed import settings
from woodshed.errors import UsageError
from woodshed.store.blobs import Blobs
from woodshed.store.records import Store


@dataclass(frozen=True, slots=True)
class Home:
    """An open state folder. ``path`` is private to its owner (mode 0700): uppers of sandboxes lie below it."""

    path: Path
    store: Store
    blobs: Blobs


@contextmanager
def opened(path: Path | None = None) -> Iterator[Home]:
    """The state folder (default: ``settings.home()``), made when missing, its tables migrated; closed at the end.

    Raises UsageError when the folder cannot be made or is not ours, StoreFault when the database is damaged.
    """
    place = path or settings.home()
    try:
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o700)
    except OSError as error:
        raise UsageError(
            f"the state folder cannot be used: {error.strerror}", file=place,
            remedy="Set WOODSHED_HOME to a folder you own.",
        ) from error  # fmt: skip
    store = Store(settings.setting("database_url") or None, place)
    try:
        blobs = Blobs(place / "blobs")
        blobs.bind(store.identity)
        yield Home(place, store, blobs)
    finally:
        store.close()
