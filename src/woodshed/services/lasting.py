"""Durability as asked for: the option becomes a part of each agent, and what cannot be kept is refused by name."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from woodshed import plugins, settings
from woodshed.errors import UsageError
from woodshed.model import Agent, CheckpointRule, Durability, RunSpec

_REMEDY = "Say for example turns=10,minutes=5; one of them is enough."


def lasting(agents: Sequence[Agent], durability: Durability, checkpoint: str | None) -> tuple[Agent, ...]:
    """``agents`` with this durability; ``checkpoint`` is a rule as :func:`parse_checkpoint` reads it.

    Raises UsageError for a rule without fine durability, or one that cannot be read.
    """
    if checkpoint is not None and durability is not Durability.FINE:
        raise UsageError("checkpoints are made of fine attempts only", field="--checkpoint",
                         remedy="Add --durability fine.")
    rule = parse_checkpoint(checkpoint) if checkpoint is not None else CheckpointRule()
    return tuple(agent.model_copy(update={"durability": durability, "checkpoint": rule}) for agent in agents)


def parse_checkpoint(text: str) -> CheckpointRule:
    """The rule that ``turns=N,minutes=M`` means, either part alone too. Raises UsageError."""
    said: dict[str, str | None] = {"turns": None, "minutes": None}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if name not in said or not equals or said[name] is not None:
            raise UsageError(f"{part.strip()!r} is no part of a rule", field="--checkpoint", remedy=_REMEDY)
        said[name] = value
    try:
        return CheckpointRule.model_validate(said)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise UsageError(f"{'.'.join(map(str, wrong['loc'])) or text}: {wrong['msg']}", field="--checkpoint",
                         remedy=_REMEDY) from None


def check(spec: RunSpec) -> None:
    """What the run's agents ask for can be kept here. Raises UsageError naming what cannot, before anything runs."""
    fine = [agent for agent in spec.agents if agent.durability is Durability.FINE]
    if not fine:
        return
    for agent in fine:
        if not getattr(plugins.harness(agent.harness), "resumable", False):
            raise UsageError(f"the agent '{agent.name}' cannot go on where another execution ended",
                             field="durability", remedy="Run it with --durability coarse.")
    if "freeze" not in plugins.engine(spec.engine, settings.home()).capabilities:
        raise UsageError(f"the engine '{spec.engine}' cannot freeze a sandbox, as checkpoints need", field="durability",
                         remedy="Run with --engine native, or --durability coarse.")
