"""Local open-weight models: fetch them, list them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from woodshed.errors import UsageError
from woodshed.gateway.local import CATALOG, DEFAULT, Installed, KnownModel, announcement, find
from woodshed.gateway.local import known as by_name
from woodshed.gateway.local import pull as fetch

__all__ = ["announce", "known", "listing", "pull"]


def known(name: str | None) -> KnownModel:
    """The model of that name, or the default one. Raises UsageError naming what is known."""
    return by_name(name or DEFAULT)


def announce(model: KnownModel, source: str) -> str:
    """What a user is told before a pull: what, how much, from whom, under which licence."""
    return announcement(model, _source(source))


def pull(model: KnownModel, home: Path, source: str, progress: Callable[[int, int], None]) -> Installed:
    """Fetch and check the weights. Raises UsageError for an unknown source, EnvironmentFault when it fails."""
    return fetch(model.name, home, source=_source(source), progress=progress)


def listing(home: Path) -> list[dict[str, Any]]:
    """Every known model: name, size in MB, licence, where it lies (None when absent) and a note."""
    rows = []
    for model in CATALOG:
        here = find(model, home)
        rows.append(
            {
                "model": model.name,
                "aliases": list(model.aliases),
                "size_mb": round(model.size_bytes / 1e6),
                "licence": model.licence,
                "path": str(here.path) if here else None,
                "source": here.source if here else None,
                "default": model.name == DEFAULT,
                "note": here.note if here else "",
            }
        )
    return rows


def _source(name: str) -> Any:
    if name not in ("hub", "pypi"):
        raise UsageError(f"unknown source '{name}'", field="--source", remedy="Say hub or pypi.")
    return name
