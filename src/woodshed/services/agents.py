"""Agents by name: what the command line says becomes an Agent record."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from woodshed import plugins, settings
from woodshed.errors import UsageError
from woodshed.model import Agent, AgentLimits, ModelSpec, Sampling, SandboxPolicy
from woodshed.model.address import continues
from woodshed.model.agent import CAPTURES, REASONINGS
from woodshed.model.rollout import WORST, CaptureLevel

DEFAULT_TOOLS: tuple[str, ...] = Agent.model_fields["tools"].default
LOCAL = "local:"
"""Scheme of a model that we serve ourselves; ``base_url`` keeps it so that a resumed run can start it again."""


def build(
    harnesses: Sequence[str],
    model: ModelSpec | None,
    *,
    limits: AgentLimits | None = None,
    dialect: str = "auto",
    tools: Sequence[str] = DEFAULT_TOOLS,
    policy: SandboxPolicy | None = None,
) -> tuple[Agent, ...]:
    """One Agent per harness name. Raises UsageError for an unknown harness or tool, a missing model, a name twice."""
    agents = []
    if model is not None and (continues(model.base_url) or dialect.startswith("text:")):
        _written(model, dialect, harnesses)
    if tuple(tools) != DEFAULT_TOOLS:
        from woodshed.harness.tools import chosen  # with the programs of the loop, which few commands need

        chosen(tools)
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
                tools=tuple(tools),
                policy=policy or SandboxPolicy(),
            )
        )
    if len({agent.name for agent in agents}) < len(agents):
        raise UsageError("an agent is given twice", field="--agent", remedy="Raise -n for more attempts.")
    return tuple(agents)


def _written(model: ModelSpec, dialect: str, harnesses: Sequence[str]) -> None:
    """The dialect says how a conversation is written, where the endpoint takes text. Raises UsageError."""
    from woodshed.harness.dialects import named  # with the readers of all formats, which few commands need

    named(dialect, model.name, raw=continues(model.base_url))
    for name in harnesses:
        if name.startswith("external:") and plugins.harness(name).needs_model:
            raise UsageError(f"agent '{name}' speaks chat completions, and {model.base_url} takes text",
                             field="--model", remedy="Give it an endpoint whose address ends before /completions.")


def crossed(harnesses: Sequence[str], models: Sequence[ModelSpec], *, limits: AgentLimits | None = None,
            ) -> tuple[Agent, ...]:
    """Each harness with each model, where it needs one; the model's name stands in the agent's where there are several.

    Raises UsageError as :func:`build`, and for two models of one name.
    """
    if len({model.name for model in models}) < len(models):
        raise UsageError("two models have the same name", field="--model", remedy="Name one of them otherwise.")
    if len(models) < 2:
        return build(harnesses, models[0] if models else None, limits=limits)
    agents: dict[str, Agent] = {}
    for model in models:
        for agent in build(harnesses, model, limits=limits):
            name = f"{agent.name}@{model.name}" if agent.model is not None else agent.name
            agents[name] = agent.model_copy(update={"name": name})
    return tuple(agents.values())


def parse_model(
    text: str, *, sampling: Sampling, key_variable: str | None = None, capture: str = "off",
    require: str | None = None, policy_version: str | None = None, reasoning: str = "send",
    vocabulary: int | None = None, field: str = "--model",
) -> ModelSpec:
    """The ModelSpec that ``text`` means: ``local[:NAME]``, ``FILE.gguf``, ``NAME@URL``, ``NAME@URL,URL…`` (a pool).

    A NAME alone takes its endpoint from the setting ``model_url``. ``capture`` says how tokens are asked for, and
    ``require`` the least level of it (``auto``, then, where nothing else is said); ``reasoning`` whether thoughts go
    back to the model, and ``vocabulary`` how many ids it has. Raises UsageError for anything else,
    whose ``field`` is where ``text`` was said.
    """
    if capture not in CAPTURES:
        raise UsageError(f"unknown way to capture '{capture}'", field="--capture",
                         remedy=f"Known: {', '.join(CAPTURES)}.")
    if require is not None and require not in [level.value for level in WORST]:
        raise UsageError(f"unknown level '{require}'", field="--require-capture",
                         remedy=f"Known: {', '.join(level.value for level in WORST)}.")
    if reasoning not in REASONINGS:
        raise UsageError(f"'{reasoning}' is no rule for reasoning", field="--reasoning",
                         remedy=f"Known: {', '.join(REASONINGS)}.")
    told = {"capture": "auto" if require is not None and capture == "off" else capture,
            "capture_least": CaptureLevel(require) if require is not None else None, "policy_version": policy_version,
            "reasoning": reasoning, "vocabulary": vocabulary}
    return _endpoint(text, sampling, key_variable, field).model_copy(update=told)


def _endpoint(text: str, sampling: Sampling, key_variable: str | None, field: str) -> ModelSpec:
    if text == "local" or text.startswith(LOCAL) or text.endswith(".gguf"):
        from woodshed.gateway.local import resolve

        choice = resolve(text.removeprefix(LOCAL) if text != "local" else None)
        return ModelSpec(name=choice.name, base_url=f"{LOCAL}{choice.reference}", sampling=sampling)
    name, at, url = text.partition("@")
    urls = [one.strip().rstrip("/") for one in (url if at else settings.setting("model_url")).split(",")]
    if not name or not all(one.startswith(("http://", "https://")) for one in urls):
        raise UsageError(
            f"'{text}' names no endpoint", field=field,
            remedy="Say local, local:NAME, FILE.gguf, or NAME@http://HOST:PORT/v1 (several of one model: URL,URL).",
        )  # fmt: skip
    for one in urls:
        _check_address(one, field)
    key = key_variable or settings.setting("model_key") or None
    first, *others = dict.fromkeys(urls)
    return ModelSpec(name=name, base_url=first, others=tuple(others), sampling=sampling, key_variable=key)


def _check_address(url: str, field: str) -> None:
    """An address is recorded and shown: it holds no secret. Raises UsageError, which does not repeat it."""
    remedy = "Say NAME@http://HOST:PORT/v1, and name the variable that holds the key with --model-key."
    try:
        parts = urlsplit(url)
        sound = bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise UsageError("the model's address has no host, or no valid port", field=field, remedy=remedy)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError("the model's address holds a user, a password or a query", field=field, remedy=remedy)
