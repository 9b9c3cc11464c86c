"""Agents by name: what the command line says becomes an Agent record."""

from __future__ import annotations

from collections.abc import Sequence

from woodshed import plugins, settings
from woodshed.errors import UsageError
from woodshed.model import Agent, AgentLimits, ModelSpec, Sampling

LOCAL = "local:"
"""Scheme of a model that we serve ourselves; ``base_url`` keeps it so that a resumed run can start it again."""


def build(
    harnesses: Sequence[str],
    model: ModelSpec | None,
    *,
    limits: AgentLimits | None = None,
    dialect: str = "auto",
) -> tuple[Agent, ...]:
    """One Agent per harness name. Raises UsageError for an unknown harness, a missing model, or a name given twice."""
    agents = []
    for name in harnesses:
        program = plugins.harness(name)
        if program.needs_model and model is None:
            raise UsageError(f"agent '{name}' needs a model", remedy="Add --model local, or --model NAME@URL.")
        agents.append(
            Agent(
                name=name,
                harness=name,
                model=model if program.needs_model else None,
                limits=limits or AgentLimits(),
                dialect=dialect,
            )
        )
    if len({agent.name for agent in agents}) < len(agents):
        raise UsageError("an agent is given twice", field="--agent", remedy="Raise -n for more attempts.")
    return tuple(agents)


def parse_model(text: str, *, sampling: Sampling, key_variable: str | None = None) -> ModelSpec:
    """The ModelSpec that ``text`` means: ``local[:NAME]``, ``FILE.gguf``, ``NAME@URL``.

    A NAME alone takes its endpoint from the setting ``model_url``. Raises UsageError for anything else.
    """
    if text == "local" or text.startswith(LOCAL) or text.endswith(".gguf"):
        from woodshed.gateway.local import resolve

        choice = resolve(text.removeprefix(LOCAL) if text != "local" else None)
        return ModelSpec(name=choice.name, base_url=f"{LOCAL}{choice.reference}", sampling=sampling)
    name, at, url = text.partition("@")
    url = url if at else settings.setting("model_url")
    if not name or not url.startswith(("http://", "https://")):
        raise UsageError(
            f"'{text}' names no endpoint", field="--model",
            remedy="Say local, local:NAME, FILE.gguf, or NAME@http://HOST:PORT/v1.",
        )  # fmt: skip
    key = key_variable or settings.setting("model_key") or None
    return ModelSpec(name=name, base_url=url.rstrip("/"), sampling=sampling, key_variable=key)
