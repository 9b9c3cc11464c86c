"""Sending: what a person says reaches an agent at work, wherever that is; and how a run or an attempt stands."""

from __future__ import annotations

from woodshed import plugins
from woodshed.engine.control import Control
from woodshed.errors import UsageError
from woodshed.model import Attempt, AttemptState, Run
from woodshed.model.sent import MessageKind, SentMessage
from woodshed.model.status import AttemptStatus, RunStatus
from woodshed.services import naming
from woodshed.services.hearing import hears
from woodshed.services.home import Home

LONGEST = 20_000
"""Characters of what is said, as of a task's scripted remarks."""
_LONGEST_KEY = 200


def say(
    home: Home, name: str, text: str, *, key: str | None = None, project: str | None = None
) -> list[SentMessage]:
    """Say ``text`` to an attempt, or to every attempt of a run that has no result yet; the messages, one an attempt.

    The agent hears it between two of its turns, or before the first. With a ``key`` that was given before nothing is
    added. Raises UsageError where there is no such attempt (of the ``project``), where it is over, or where its agent
    cannot be told.
    """
    if not text.strip() or len(text) > LONGEST:
        raise UsageError(f"{len(text)} characters are no message" if text.strip() else "nothing is said", field="text",
                         remedy=f"Say something of at most {LONGEST} characters.")
    if key is not None and not (0 < len(key) <= _LONGEST_KEY and key.isprintable()):
        raise UsageError("it is no key", field="--key", remedy=f"Take 1 to {_LONGEST_KEY} printable characters.")
    run, to = _addressed(home, name, project)
    deaf = {agent.name for agent in run.spec.agents if not hears(plugins.harness(agent.harness))}
    told = [attempt.id for attempt in to if attempt.agent not in deaf]
    if not told:
        raise UsageError(f"'{to[0].agent}' cannot be told anything while it works", field="attempt",
                         remedy="Agents of the harness 'loop' can.")
    return Control(home.store).send(told, MessageKind.SAY, {"text": text}, key)


def status(home: Home, name: str, *, project: str | None = None) -> RunStatus | AttemptStatus:
    """How a run or an attempt stands. ``last`` names the newest run (of the ``project``). Raises UsageError where

    there is none.
    """
    return Control(home.store).status(naming.either(home, name, project).id)


def status_of(home: Home, run: Run) -> RunStatus | None:
    """How a run stands that is not over; None where it is: then its summary tells all."""
    return None if run.finished_at is not None else home.store.status.of_run(run.id)


def _addressed(home: Home, name: str, project: str | None) -> tuple[Run, list[Attempt]]:
    """The attempt of this id with its run, or the attempts of this run; those that are over where all are."""
    meant = naming.either(home, name, project)
    if isinstance(meant, Attempt):
        return home.store.run(meant.run), [meant]
    found = home.store.attempts(meant.id)
    if not found:
        raise UsageError(f"{meant.id} has no attempts", field="run")
    return meant, [attempt for attempt in found if attempt.state is not AttemptState.DONE] or found
