"""What may stand after the colon of an agent's name."""

from __future__ import annotations

from woodshed.errors import UsageError


def no_argument(name: str, argument: str | None) -> None:
    """Return when there is none. Raises UsageError otherwise."""
    if argument:
        raise UsageError(f"the agent '{name}' takes no argument", remedy=f"Write {name}, without ':{argument}'.")
