"""``woodshed fork``: a new run whose attempts all go on from one step of an earlier attempt."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from woodshed.cli.driving import driven
from woodshed.cli.output import Json, emit_json, note
from woodshed.cli.run import print_summary
from woodshed.errors import UsageError
from woodshed.model import Agent, Run, Sampling
from woodshed.model.fork import ForkSpec
from woodshed.sandbox.native.places import sweep
from woodshed.services import agents as agent_service
from woodshed.services import forking, naming, report
from woodshed.services.home import Home, opened
from woodshed.services.runs import Progress


def fork(
    attempt: Annotated[str, typer.Argument(help="An attempt's id, or 'last'.")],
    step: Annotated[int, typer.Option(min=0, help="How many of its steps are kept; trace numbers them.")],
    attempts: Annotated[int, typer.Option("-n", "--attempts", min=1, help="Branches by each agent.")] = 1,
    agent: Annotated[list[str] | None, typer.Option(
        "--agent", "-a", help="Who goes on (default: the attempt's own agent); repeatable.")] = None,
    model: Annotated[str | None, typer.Option(help="Of those who go on: local, local:NAME, NAME@URL.")] = None,
    say: Annotated[str | None, typer.Option(metavar="TEXT", help="Told to the agent where it goes on.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="Sampling temperature (default: as then).")] = None,
    turns: Annotated[int | None, typer.Option(min=1, help="Turns in all, kept ones too (default: as then).")] = None,
    model_key: Annotated[str | None, typer.Option(metavar="VARIABLE", help="Variable holding the key.")] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Attempts at a time.")] = 2,
    seed: Annotated[int | None, typer.Option(help="Fixes the seed of every branch (default: of the place).")] = None,
    diverged: Annotated[bool, typer.Option("--diverged", help="Go on though calls went otherwise than then.")] = False,
    json: Json = False,
) -> None:
    """Branch off an attempt after a step: its sandbox as it was then, its conversation, and a new way on from there."""
    with opened() as home:
        found = naming.attempt(home, attempt)
        spec = ForkSpec(attempt=found.id, execution=max(1, found.executions), step=step, say=say, diverged=diverged)
        agents = _agents(home, spec, agent or [], model, temperature, turns, model_key)
        planned, tasks = forking.plan(home, spec, agents, attempts=attempts, concurrency=concurrency, seed=seed)

        async def begun(progress: Progress) -> Run:
            return await forking.start(home, planned, tasks, progress, sweep=partial(sweep, home.path), tell=note)

        run = driven(begun, resume="woodshed run --resume")
        summary = report.summary(home, run)
        folder = report.write_results(home, run, summary)
    if json:
        emit_json({**summary, "fork": spec.to_json()})
    else:
        print_summary(summary, folder)
        note(f"each goes on from {spec.attempt} after its step {spec.step}")


def _agents(
    home: Home, spec: ForkSpec, names: list[str], model: str | None, temperature: float | None, turns: int | None,
    key: str | None,
) -> list[Agent]:
    """Who goes on: the attempt's own agent with what is given here, or others."""
    parent = forking.parent(home, spec)
    given = None
    if model is not None:
        sampling = Sampling() if parent.model is None else parent.model.sampling
        given = agent_service.parse_model(model, sampling=sampling, key_variable=key,
                                          capture=parent.model.capture if parent.model else "off")
    elif key is not None:
        raise UsageError("--model-key belongs to a model", field="--model-key", remedy="Add --model.")
    own = given or parent.model
    if own is not None and temperature is not None:
        own = own.model_copy(update={"sampling": own.sampling.model_copy(update={"temperature": temperature})})
    limits = parent.limits if turns is None else parent.limits.model_copy(update={"turns": turns})
    if not names:
        return [parent.model_copy(update={"model": own, "limits": limits})]
    made = agent_service.build(names, own, limits=limits)
    return [one.model_copy(update={"dialect": parent.dialect, "tools": parent.tools, "policy": parent.policy})
            for one in made]
