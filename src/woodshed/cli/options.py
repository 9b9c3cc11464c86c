"""Options that commands share: one alias each, and those that say what a run is to be, as one group.

Typer makes an option of each parameter of a command. A group is a dataclass whose fields are such parameters;
:func:`grouped` lays them out in the command's signature, and hands it the group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from woodshed.errors import UsageError
from woodshed.model import Agent, AgentLimits, Durability, ModelSpec, Sampling, SandboxPolicy
from woodshed.model.sample import Sample
from woodshed.services import agents as agent_service
from woodshed.services import boxes, declared, lasting, rulesets

_MODEL = partial(typer.Option, rich_help_panel="The model, and how it is spoken to")
_CAPTURE = partial(typer.Option, rich_help_panel="Records for training")
_WITHIN = partial(typer.Option, rich_help_panel="Limits and deadlines")
_VERDICT = partial(typer.Option, rich_help_panel="Verdicts")
_LASTS = partial(typer.Option, rich_help_panel="When something breaks")

Agents = Annotated[list[str] | None, typer.Option(
    "--agent", "-a", help="oracle, nop, patch:FILE, replay:FILE, cheat:NAME, loop, external:NAME; repeatable.")]
Model = Annotated[str | None, _MODEL(help="local, local:NAME, FILE.gguf, or NAME@URL.")]
Attempts = Annotated[int, typer.Option("-n", "--attempts", min=1, help="Attempts of each task by each agent.")]
Seed = Annotated[int, typer.Option(help="Fixes the seed of every attempt.")]
Engine = Annotated[str | None, typer.Option(help="Sandbox engine (default: WOODSHED_ENGINE or native).")]
Turns = Annotated[int, _WITHIN(min=1, help="Turns of a model before its attempt is cut off.")]
ToolCalls = Annotated[int, _WITHIN(min=1, help="Tool calls before an attempt is cut off.")]
Tokens = Annotated[int | None, _WITHIN(min=1, help="Prompt and completion tokens of an attempt together.")]
Wall = Annotated[float | None, _WITHIN(min=0.1, metavar="SECONDS", help="Wall time of acting (default: task's).")]
Temperature = Annotated[float | None, _MODEL(min=0.0, help="Sampling temperature (default: the server's).")]
MaxTokens = Annotated[int, _MODEL(min=1, help="Tokens of one answer.")]
KeyVariable = Annotated[str | None, _MODEL("--model-key", metavar="VARIABLE", help="Variable holding the key.")]
Capture = Annotated[str, _CAPTURE(
    help="Ask for token ids and logprobs: off, auto, or a server (vllm, sglang, llama.cpp, transformers, plain).")]
RequireCapture = Annotated[str | None, _CAPTURE(
    metavar="LEVEL", help="Refuse to run where the endpoint tells less: tokens+logprobs, tokens or text.")]
PolicyVersion = Annotated[str | None, _CAPTURE(
    metavar="VERSION", help="Of the model's weights, where the server does not tell it; stands in each record.")]
Vocabulary = Annotated[int | None, _MODEL(
    min=1, metavar="N", help="How many ids the model has, where its server does not tell: others make a call flawed.")]
Reasoning = Annotated[str, _MODEL(
    metavar="RULE", help="Whether what a model thought goes back to it with the conversation: send or drop.")]
Person = Annotated[str | None, _MODEL(
    metavar="MODEL", help="Plays the persons of tasks that have one: local, or NAME@URL; its key as --model-key.")]
Verifier = Annotated[str, _VERDICT(help="fresh, or poisoned: a second run whose secretly broken tests must fail.")]
Policy = Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file of the agents' policy; docs/policy.md.")]
Rules = Annotated[Path | None, _VERDICT(metavar="FILE", help="TOML file of reward rules; docs/rewards.md.")]
Retry = Annotated[Path | None, _LASTS(metavar="FILE", help="TOML file of retry rules; docs/retries.md.")]
Deadline = Annotated[list[str] | None, _WITHIN(
    metavar="STAGE=TIME", help="The most a stage may take: prepare, act, capture, verify, close; repeatable.")]
RunDeadline = Annotated[str | None, _WITHIN(
    metavar="TIME", help="Then nothing more begins and what runs is cut off; it can be resumed.")]
Strict = Annotated[bool, _VERDICT("--strict", help="Refuse tasks without a current calibration, or in quarantine.")]
Quarantined = Annotated[bool, _VERDICT("--quarantined", help="Run tasks in quarantine, too.")]
Dialect = Annotated[str, _MODEL(help="How calls are written: auto, tools, strict, text, or a family of models.")]
Tools = Annotated[str, _MODEL(
    metavar="NAMES", help="Tools of loop, by commas: default, session, jobs, plan, delegate, or single ones.")]
Lasts = Annotated[Durability, _LASTS(
    "--durability", help="fine: an attempt that is cut off goes on at its turn; docs/durability.md.")]
Prices = Annotated[Path | None, typer.Option("--price-book", metavar="FILE", help="TOML file of prices, for costs.")]
Checkpoint = Annotated[str | None, _LASTS(
    metavar="RULE", help="With --durability fine: how often files are kept (turns=10,minutes=5).")]

Sampled = Annotated[int | None, typer.Option(
    "--sample", min=1, metavar="N", help="Only N of the tasks, drawn by --seed; what was drawn is recorded.")]
Informative = Annotated[bool, typer.Option(
    "--by-informative", help="With --sample: by how much a group of each task is expected to teach; docs/training.md.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run is to be, now or whenever a schedule fires: who acts, within what, and by what it is judged."""

    agent: Agents = None
    model: Model = None
    attempts: Attempts = 1
    seed: Seed = 0
    engine: Engine = None
    turns: Turns = 50
    tool_calls: ToolCalls = 200
    tokens: Tokens = None
    wall: Wall = None
    temperature: Temperature = None
    max_tokens: MaxTokens = 2048
    model_key: KeyVariable = None
    capture: Capture = "off"
    require_capture: RequireCapture = None
    policy_version: PolicyVersion = None
    reasoning: Reasoning = "send"
    vocabulary: Vocabulary = None
    person: Person = None
    dialect: Dialect = "auto"
    tools: Tools = "default"
    policy: Policy = None
    rules: Rules = None
    retry: Retry = None
    durability: Lasts = Durability.COARSE
    checkpoint: Checkpoint = None
    deadline: Deadline = None
    run_deadline: RunDeadline = None
    verifier: Verifier = "fresh"
    strict: Strict = False
    quarantined: Quarantined = False

    def given(self) -> list[str]:
        """The names of what was said, and is other than the default."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]

    def order(self) -> dict[str, Any]:
        """The order by the names that :func:`services.runs.plan` and :class:`model.schedule.Standing` both have.

        Raises UsageError for whatever cannot be meant.
        """
        agents, bound = self._agents()
        return {
            "agents": lasting.lasting(agents, self.durability, self.checkpoint), "attempts": self.attempts,
            "seed": self.seed, "engine": boxes.engine_of(bound, self.engine), "verifier": self.verifier,
            "rules": rulesets.load(self.rules) if self.rules else None,
            "retry": declared.load_retry(self.retry) if self.retry else None,
            "deadlines": declared.deadlines(self.deadline or (), self.run_deadline), "strict": self.strict,
            "quarantined": self.quarantined, "person": self._person(),
        }

    def _agents(self) -> tuple[tuple[Agent, ...], SandboxPolicy | None]:
        """The agents, and the policy that binds them."""
        if not self.agent:
            raise UsageError("no agent", field="--agent",
                             remedy="Say --agent oracle, or --agent loop --model NAME@URL.")
        if self.dialect not in ("auto", "tools", "text"):
            from woodshed.harness.dialects import NAMES  # with the readers of all formats, which few commands need

            if self.dialect not in NAMES:
                raise UsageError(f"unknown dialect '{self.dialect}'", field="--dialect",
                                 remedy=f"Known: {', '.join(NAMES)}.")
        sampling = Sampling(temperature=self.temperature, max_tokens=self.max_tokens)
        spec = agent_service.parse_model(
            self.model, sampling=sampling, key_variable=self.model_key, capture=self.capture,
            require=self.require_capture, policy_version=self.policy_version,
            reasoning=self.reasoning, vocabulary=self.vocabulary) if self.model else None
        bound = boxes.load_policy(self.policy) if self.policy else None
        limits = AgentLimits(turns=self.turns, tool_calls=self.tool_calls, tokens=self.tokens, wall_s=self.wall)
        named = [name.strip() for name in self.tools.split(",") if name.strip()]
        return agent_service.build(self.agent, spec, limits=limits, dialect=self.dialect, policy=bound,
                                   tools=named), bound

    def _person(self) -> ModelSpec | None:
        """Whoever plays the persons of tasks."""
        if self.person is None:
            return None
        return agent_service.parse_model(self.person, sampling=Sampling(), key_variable=self.model_key,
                                         field="--person")


def drawn_by(sample: int | None, informative: bool) -> Sample | None:
    """What --sample and --by-informative ask for. Raises UsageError for the latter alone."""
    if informative and sample is None:
        raise UsageError("there is nothing to draw", field="--by-informative", remedy="Add --sample N.")
    return None if sample is None else Sample(count=sample, by="informative" if informative else "chance")


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with the fields of each of its dataclasses for parameters, as Typer reads them."""
    told, flat, groups = get_type_hints(command, include_extras=True), list[inspect.Parameter](), dict[str, Any]()
    for name, parameter in inspect.signature(command).parameters.items():
        if not is_dataclass(told[name]):
            flat.append(parameter.replace(annotation=told[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name], inner = told[name], get_type_hints(told[name], include_extras=True)
        flat += [inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default,
                                   annotation=inner[field.name]) for field in fields(told[name])]
    signature = inspect.Signature(flat)

    @wraps(command)
    def laid_out(**given: Any) -> None:
        bound = signature.bind(**given)
        bound.apply_defaults()
        values = bound.arguments
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    laid_out.__signature__ = signature  # type: ignore[attr-defined]  # inspect's own name, which Typer goes by
    laid_out.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return laid_out
