"""Naming: which run or attempt a user means. One place for every command, so that ``last`` is understood by all."""

from __future__ import annotations

from woodshed.errors import UsageError
from woodshed.model import Attempt, Run, Valid
from woodshed.services import projects
from woodshed.services.home import Home

LAST = "last"


def run(home: Home, name: str, project: str | None = None) -> Run:
    """The run with this id; ``last`` is the newest one. With a ``project``, only that project's are meant.

    Raises UsageError where there is none.
    """
    if project is not None:
        projects.existing(home, project)
    if (one := _attempt(home, name)) is not None:
        raise UsageError(f"'{name}' is an attempt, and a run is asked for", field="run", remedy=f"It is of {one.run}.")
    found = home.store.newest_run(project) if project is not None and name == LAST else home.store.run(name)
    if found is None or (project is not None and found.project != project):
        raise UsageError(f"'{project}' has no run" + ("" if found is None else f" '{name}'"), field="--project",
                         remedy="'woodshed show' lists the runs, and whose they are.")
    return found


def attempt(home: Home, name: str) -> Attempt:
    """The attempt with this id; ``last`` is the newest run's first one that passed, else its first one.

    Raises UsageError where there is none.
    """
    if name == LAST:
        newest = run(home, LAST)
        found = home.store.attempts(newest.id)
        if not found:
            raise UsageError(f"{newest.id} has no attempts", field="attempt", remedy="Name another run's attempt.")
        return next((one for one in found if _passed(one)), found[0])
    if (one := _attempt(home, name)) is None:
        raise _no_attempt(home, name)
    return one


def either(home: Home, name: str, project: str | None = None) -> Run | Attempt:
    """The run or the attempt with this id; ``last`` is the newest run. Raises UsageError where there is none."""
    if (one := _attempt(home, name)) is None:
        if "." in name:
            raise _no_attempt(home, name)
        return run(home, name, project)
    if project is not None:
        run(home, one.run, project)
    return one


def _attempt(home: Home, name: str) -> Attempt | None:
    try:
        return home.store.attempt(name)
    except UsageError:
        return None


def _no_attempt(home: Home, name: str) -> UsageError:
    try:
        home.store.run(name)
    except UsageError:
        return UsageError(f"no attempt '{name}'", field="attempt", remedy="'woodshed show RUN' lists them.")
    return UsageError(f"'{name}' is a run, and an attempt is asked for", field="attempt",
                      remedy=f"'woodshed show {name}' lists them.")


def _passed(attempt: Attempt) -> bool:
    verdict = attempt.outcome.verdict if attempt.outcome else None
    return isinstance(verdict, Valid) and verdict.passed
