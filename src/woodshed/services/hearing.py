"""Hearing: whether agents can be told what people say to them while they work, simulated ones or real ones."""

from __future__ import annotations

from collections.abc import Sequence

from woodshed import plugins
from woodshed.errors import UsageError
from woodshed.interfaces import Harness
from woodshed.model import Agent, ModelSpec, Task
from woodshed.model.address import continues


def hears(harness: Harness) -> bool:
    """Whether what is said reaches whoever decides."""
    return bool(getattr(harness, "hears", False))


def check(agents: Sequence[Agent], tasks: Sequence[Task], person: ModelSpec | None = None) -> None:
    """Everybody who decides by itself can be told, and whom a model plays has one: ``person``.

    Raises UsageError naming the first agent that cannot be told, and the task.

    A harness says so by ``hears = True``. Those without a model play what was decided before, and ignore what is said,
    unless they say ``hears = False``: a program of others, which is told its task once and then left alone.
    """
    speaking = next((task for task in tasks if task.feedback or task.person), None)
    if speaking is None:
        return
    for agent in agents:
        harness = plugins.harness(agent.harness)
        if not getattr(harness, "hears", not harness.needs_model):
            raise UsageError(f"somebody speaks to the agent while it works at {speaking.id}, and '{agent.name}' cannot "
                             "be told", file=speaking.folder / "task.toml",
                             field="woodshed.feedback" if speaking.feedback else "woodshed.person",
                             remedy="Run the task with another agent, such as loop.")
    _check_person([plugins.harness(agent.harness) for agent in agents], tasks, person)


def _check_person(harnesses: Sequence[Harness], tasks: Sequence[Task], person: ModelSpec | None) -> None:
    played = next((task for task in tasks if task.person is not None), None)
    if played is not None and person is None and any(hears(harness) for harness in harnesses):
        raise UsageError(f"a model plays the person of {played.id}, and none is named",
                         file=played.folder / "task.toml", field="woodshed.person",
                         remedy="Name one: --person local, or --person NAME@URL.")
    if person is not None and continues(person.base_url):
        raise UsageError("the model of a person speaks chat completions", field="--person",
                         remedy="Give an address that ends before them.")
