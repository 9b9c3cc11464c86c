"""Projects: whose a run is. What they may have at work together, and how they share workers, is told by project."""

from __future__ import annotations

import re

from woodshed.errors import UsageError
from woodshed.services.home import Home
from woodshed.settings import setting

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_REMEDY = "Use up to 63 letters, digits, '.', '_' and '-'."
_SHOWN = 20
"""Projects that a refusal names."""


def named(text: str | None) -> str:
    """The project of this name; without one, that of the setting ``project``. Raises UsageError for no name."""
    if text is None:
        return _valid(setting("project"), "WOODSHED_PROJECT")
    return _valid(text, "--project")


def existing(home: Home, text: str) -> str:
    """The project of this name, which has runs, schedules or limits, or is the setting's own.

    Raises UsageError naming those that there are.
    """
    wanted, own = _valid(text, "--project"), named(None)
    there = sorted({*home.store.status.projects(), own})
    if wanted not in there:
        more = f", and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
        raise UsageError(f"no project '{wanted}'", field="--project",
                         remedy=f"There are: {', '.join(there[:_SHOWN])}{more}.")
    return wanted


def demanded(home: Home, text: str | None) -> str:
    """The project of this name, as :func:`existing` has it. Raises UsageError where none is named, too."""
    if text is None:
        raise UsageError("no run", field="RUN", remedy="Name a run, or say --project NAME for all of its paused ones.")
    return existing(home, text)


def _valid(text: str, field: str) -> str:
    if not _NAME.fullmatch(text):
        raise UsageError(f"{text!r} is no name of a project", field=field, remedy=_REMEDY)
    return text
