"""Hearing: whether agents can be told what people say to them while they work, simulated ones or real ones."""

from __future__ import annotations

from collections.abc import Sequence

from woodshed import plugins
from woodshed.errors import UsageError
from woodshed.interfaces import Harness
from woodshed.model import Agent, Task


def hears(harness: Harness) -> bool:
    """Whether what is said reaches whoever decides."""
    return bool(getattr(harness, "hears", False))


def check(agents: Sequence[Agent], tasks: Sequence[Task]) -> None:
    """Everybody who decides by itself can be told. Raises UsageError naming the first agent that cannot, and the task.

    A harness says so by ``hears = True``. Those without a model play what was decided before, and ignore what is said,
    unless they say ``hears = False``: a program of others, which is told its task once and then left alone.
    """
    speaking = next((task for task in tasks if task.feedback), None)
    if speaking is None:
        return
    for agent in agents:
        harness = plugins.harness(agent.harness)
        if not getattr(harness, "hears", not harness.needs_model):
            raise UsageError(f"somebody speaks to the agent while it works at {speaking.id}, and '{agent.name}' cannot "
                             "be told", file=speaking.folder / "task.toml", field="woodshed.feedback",
                             remedy="Run the task with another agent, such as loop.")
