"""Projects: whose a run is. What they may have at work together, and how they share workers, is told by project."""

from __future__ import annotations

import re

from woodshed.errors import UsageError
from woodshed.model import Run
from woodshed.services.home import Home
from woodshed.settings import setting

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_REMEDY = "Use up to 63 letters, digits, '.', '_' and '-'."


def named(text: str | None) -> str:
    """The project of this name; without one, that of the setting ``project``. Raises UsageError for no name."""
    if text is None:
        return _valid(setting("project"), "WOODSHED_PROJECT")
    return _valid(text, "--project")


def demanded(text: str | None) -> str:
    """The project of this name. Raises UsageError where there is none."""
    if text is None:
        raise UsageError("no run", field="RUN", remedy="Name a run, or say --project NAME for all of its paused ones.")
    return _valid(text, "--project")


def run(home: Home, name: str, project: str | None) -> Run:
    """The run with this id, which is the ``project``'s where one is given; ``last`` is then its newest one.

    Raises UsageError.
    """
    if project is None:
        return home.store.run(name)
    _valid(project, "--project")
    found = home.store.newest_run(project) if name == "last" else home.store.run(name)
    if found is None or found.project != project:
        raise UsageError(f"'{project}' has no run" + ("" if found is None else f" '{name}'"), field="--project",
                         remedy="'woodshed show' lists the runs, and whose they are.")
    return found


def _valid(text: str, field: str) -> str:
    if not _NAME.fullmatch(text):
        raise UsageError(f"{text!r} is no name of a project", field=field, remedy=_REMEDY)
    return text
