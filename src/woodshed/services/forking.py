"""Forks: a new run whose attempts all go on from one step of an earlier attempt."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from woodshed import plugins
from woodshed.errors import UsageError
from woodshed.model import Agent, Durability, Run, RunSpec, Task
from woodshed.model.event import now
from woodshed.model.fork import ForkSpec
from woodshed.services import projects, runs
from woodshed.services.crew import Crew
from woodshed.services.ground import Origin, goes_on, origin
from woodshed.services.home import Home
from woodshed.services.janitor import Sweep, nothing
from woodshed.services.runs import Progress, drive, planned
from woodshed.services.source import Source
from woodshed.store.ids import new_run_id


def plan(
    home: Home, fork: ForkSpec, agents: Sequence[Agent], *, attempts: int, concurrency: int, seed: int | None = None
) -> tuple[RunSpec, list[Task]]:
    """What is asked, checked against the parent: ``attempts`` branches by each of ``agents``, or by the parent's own.

    Raises UsageError for an attempt or a step that is not there, a task that has changed, and agents that cannot go on.
    """
    of = origin(home, fork)
    tasks = [task for task in Source(home, of.run).tasks.values() if task.id == of.attempt.task]
    if not tasks:
        raise UsageError(f"the task of {of.attempt.id} is gone, or has changed since", field="attempt",
                         remedy="Restore its folder.")
    chosen = [agent.model_copy(update={"durability": Durability.COARSE}) for agent in agents or (of.agent,)]
    _check_parent(of, tasks[0], fork)
    for agent in chosen:
        _check_agent(of, agent, fork)
    then = of.run.spec
    spec, found = runs.plan(
        [tasks[0].folder], chosen, attempts=attempts, concurrency=concurrency, engine=then.engine, rules=then.rules,
        seed=seed_of(fork) if seed is None else seed, verifier=then.verifier, retry=then.retry,
        deadlines=then.deadlines, person=then.person, quarantined=True)
    return spec.model_copy(update={"fork": fork}), found


async def start(
    home: Home, spec: RunSpec, tasks: Sequence[Task], progress: Progress, *, sweep: Sweep = nothing,
    tell: Callable[[str], None] = lambda sentence: None,
) -> Run:
    """Make the state, create the run, and drive it to its end; the finished Run.

    ``tell`` hears what people should know of its models. Raises UsageError where the state did not come about again;
    then there is no run.
    """
    project = home.store.attempt(spec.fork.attempt).project if spec.fork is not None else projects.named(None)
    run = Run(id=new_run_id(), project=project, spec=spec, created_at=now())
    async with Crew(home, run, tasks, sweep=sweep, tell=tell) as crew:
        await crew.prepare()
        home.store.create_run(run.model_copy(update={"executor": crew.executor}), planned(run, tasks))
        return await drive(home, run, crew, progress)


def parent(home: Home, fork: ForkSpec) -> Agent:
    """The agent of the attempt. Raises UsageError where attempt or step are not there."""
    return origin(home, fork).agent


def seed_of(fork: ForkSpec) -> int:
    """Another one than the parent's, so that a branch is not sampled as it was: the same for the same place."""
    return int.from_bytes(hashlib.sha256(f"{fork.attempt}\0{fork.step}".encode()).digest()[:4], "big") & 0x7FFF_FFFF


def _check_parent(of: Origin, task: Task, fork: ForkSpec) -> None:
    stepwise = bool(task.steps) and fork.step > of.begins
    if stepwise and of.below is not None:
        raise UsageError(f"{of.attempt.id} went on at a task of several steps, with a conversation of its own",
                         field="attempt", remedy=f"Fork {of.below.attempt}.")
    if stepwise and not getattr(plugins.harness(of.agent.harness), "resumable", False):
        raise UsageError(f"'{of.agent.name}' is a program of others, and its task has several steps", field="attempt",
                         remedy="Fork attempts of such programs at tasks of one step.")


def _check_agent(of: Origin, agent: Agent, fork: ForkSpec) -> None:
    same, harness = goes_on(of.agent, agent), plugins.harness(agent.harness)
    ended = of.attempt.outcome is not None and fork.step >= of.steps
    if same and ended and of.agent.model is not None:
        raise UsageError(f"nothing goes on after step {of.steps}: it was the last one", field="--step",
                         remedy=f"Say {of.begins} to {of.steps - 1}, or name another agent.")
    if fork.say is not None and not (getattr(harness, "hears", False) if same else harness.needs_model):
        raise UsageError(f"'{agent.name}' cannot be told anything", field="--say", remedy="Leave it out.")
