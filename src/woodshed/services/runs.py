"""Start a run, or resume one: tasks × agents × attempts, each attempt exactly once in the results."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from woodshed import plugins, settings
from woodshed.engine.lease import owner, refuse_living
from woodshed.errors import Cancelled, Paused, StoreFault, UsageError
from woodshed.model import (
    Agent,
    Attempt,
    AttemptState,
    Deadlines,
    Invalid,
    ModelSpec,
    Outcome,
    Run,
    RunSpec,
    RunState,
    SandboxPolicy,
    Task,
    Valid,
)
from woodshed.model.deadlines import least_verify_s
from woodshed.model.event import now
from woodshed.model.retry import RetryRules
from woodshed.model.rules import RuleSet
from woodshed.services import hearing, lasting, naming, projects, rulesets
from woodshed.services.calibration.standing import admitted
from woodshed.services.crew import Crew
from woodshed.services.home import Home
from woodshed.services.janitor import Sweep, nothing
from woodshed.store.ids import attempt_id, new_run_id
from woodshed.store.queue import SubmissionState
from woodshed.tasks.load import find_tasks


@dataclass(slots=True)
class Tally:
    """How far ``run`` is. ``valid + invalid.total() == done``; ``passed + failed == valid``."""

    run: str
    total: int
    done: int = 0
    valid: int = 0
    passed: int = 0
    failed: int = 0
    invalid: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count one finished attempt."""
        self.done += 1
        match outcome.verdict:
            case Valid() as verdict:
                self.valid += 1
                self.passed += verdict.passed
                self.failed += not verdict.passed
            case Invalid() as verdict:
                self.invalid[verdict.cause.value] += 1


Progress = Callable[[Tally], None]
Further = Callable[[], Awaitable[Sequence[Attempt]]]
"""Asked when everything planned is done: attempts of the same run, already recorded, that follow from what it found."""


def plan(
    paths: Sequence[str | Path],
    agents: Sequence[Agent],
    *,
    attempts: int,
    concurrency: int,
    seed: int,
    engine: str,
    verifier: str = "fresh",
    rules: RuleSet | None = None,
    retry: RetryRules | None = None,
    deadlines: Deadlines | None = None,
    person: ModelSpec | None = None,
    strict: bool = False,
    quarantined: bool = False,
    tell: Callable[[str], None] = lambda sentence: None,
) -> tuple[RunSpec, list[Task]]:
    """What is asked, checked against the task folders and the engine; ``rules`` take the place of the tasks' own.

    Tasks in quarantine are left out unless ``quarantined``; ``strict`` refuses them, and tasks that are not calibrated.
    ``tell`` hears of both, what a policy does not hold, and where rules will leave a total unknown. Raises UsageError
    for anything wrong with tasks, names, rules or policies, Unsupported for what the engine cannot hold.
    """
    tasks = admitted(find_tasks([Path(path) for path in paths]), strict=strict, quarantined=quarantined, tell=tell)
    spec = RunSpec(
        tasks=tuple(str(task.folder) for task in tasks),
        digests={str(task.folder): task.digest for task in tasks},
        groups={task.id: task.group for task in tasks},
        agents=tuple(agents),
        attempts=attempts,
        concurrency=concurrency,
        seed=seed,
        engine=engine,
        verifier=verifier,
        rules=rules,
        retry=retry or RetryRules(),
        deadlines=deadlines or Deadlines(),
        person=person,
    )
    _check_deadlines(spec.deadlines, tasks, tell)
    _check_policies(spec, tasks, tell)
    lasting.check(spec)
    hearing.check(spec.agents, tasks, person)
    rulesets.check(rules, tasks, tell)
    return spec, tasks


def _check_deadlines(deadlines: Deadlines, tasks: Sequence[Task], tell: Callable[[str], None]) -> None:
    """Tell where a deadline ends tests that their task would let run on: who is at fault is then found out first."""
    asked_s = deadlines.verify_s
    short = [task.id for task in tasks if asked_s is not None and least_verify_s(task) > asked_s]
    if short:
        names = ", ".join(short[:3]) + " …" * (len(short) > 3)
        tell(f"verify={asked_s:g}s is less than {len(short)} of the tasks give their verifier: their references are "
             f"judged first, and tests end then, or after ten times what a reference took ({names})")


def _check_policies(spec: RunSpec, tasks: Sequence[Task], tell: Callable[[str], None]) -> None:
    plugins.verifier(spec.verifier)
    told: dict[str, None] = {}
    for agent in spec.agents:
        if agent.policy.engine not in (None, spec.engine):
            raise UsageError(f"the policy of {agent.name} demands the engine '{agent.policy.engine}', and the run has "
                             f"'{spec.engine}'", field="engine", remedy="Say --engine, or leave it out of the policy.")
        if agent.policy != SandboxPolicy():
            engine = plugins.engine(spec.engine, settings.home())
            for task in tasks:
                told |= dict.fromkeys(engine.check(task.environment, agent.policy_within(task.environment.limits)))
    for sentence in told:
        tell(sentence)


async def start(
    home: Home, spec: RunSpec, tasks: Sequence[Task], progress: Progress, *, sweep: Sweep = nothing,
    tell: Callable[[str], None] = lambda sentence: None, project: str | None = None,
) -> Run:
    """Create the run and drive it to its end; the finished Run.

    When the caller is cancelled, everything live is closed and the run is left ``interrupted``, ready to resume.
    ``sweep`` removes what dead sandbox engines left, again and again while it runs. ``tell`` hears what people should
    know of its models. It is the ``project``'s (default: as the setting says).
    """
    run = Run(id=new_run_id(), project=projects.named(project), spec=spec, created_at=now())
    async with Crew(home, run, tasks, sweep=sweep, tell=tell) as crew:
        home.store.create_run(run.model_copy(update={"executor": crew.executor}), planned(run, tasks))
        return await drive(home, run, crew, progress)


async def resume(
    home: Home, run_id: str, progress: Progress, *, concurrency: int | None = None, run_s: float | None = None,
    sweep: Sweep = nothing, tell: Callable[[str], None] = lambda sentence: None,
) -> Run:
    """Finish an interrupted run: its open attempts get a new execution, finished ones stand.

    A deadline of the run counts anew, ``run_s`` seconds where that is given. ``last`` names the newest run. Raises
    UsageError when there is none, when its owner lives, or a task has changed.
    """
    run = to_resume(home, run_id, checking=False, concurrency=concurrency)
    if run.state is RunState.FINISHED:
        return run
    if run_s is not None:
        deadlines = run.spec.deadlines.model_copy(update={"run_s": run_s})
        run = run.model_copy(update={"spec": run.spec.model_copy(update={"deadlines": deadlines})})
    tasks = unchanged(run)
    async with Crew(home, run, tasks, sweep=sweep, tell=tell) as crew:
        crew.take_over()
        return await drive(home, run, crew, progress)


def to_resume(home: Home, run_id: str, *, checking: bool, concurrency: int | None) -> Run:
    """The run to finish, with another ``concurrency`` where one is given. Raises UsageError as :func:`resume` does."""
    run = naming.run(home, run_id)
    if (run.spec.check is not None) is not checking:
        what, command = ("a check of tasks", "tasks check") if run.spec.check else ("no check of tasks", "run")
        raise UsageError(f"{run.id} is {what}", field="run", remedy=f"Say: woodshed {command} --resume {run.id}")
    if concurrency:
        run = run.model_copy(update={"spec": run.spec.model_copy(update={"concurrency": concurrency})})
    _refuse_shared(home, run)
    if run.state is RunState.CANCELLED:
        raise UsageError(f"{run.id} was cancelled", field="run", remedy="Start another.")
    if run.executor and run.state is not RunState.FINISHED:
        refuse_living(run, home.path)  # before models are loaded; whoever takes over asks once more
    return run


def _refuse_shared(home: Home, run: Run) -> None:
    """Workers do not have the run. Raises UsageError with the remedy: then it is not one process's to finish."""
    shared = home.store.queue.submission(run.id)
    if shared is None or shared.state is SubmissionState.CLOSED:
        return
    if shared.state is SubmissionState.CANCELLED:
        raise UsageError(f"{run.id} was cancelled", field="run", remedy="Start another.")
    remedy = "Start a worker: woodshed worker" if shared.state is SubmissionState.OPEN else \
        f"Say: woodshed runs open {run.id}"
    raise UsageError(f"{run.id} is handed out to workers, and {shared.state.value}", field="run", remedy=remedy)


def resumable(home: Home, spec: RunSpec, project: str | None = None) -> Run | None:
    """The newest unfinished run of the project that asked for the same thing and whose owner is gone, or None."""
    wanted = spec.model_copy(update={"concurrency": 1})
    for run in home.store.runs(projects.named(project), unfinished=True):
        same = run.spec.model_copy(update={"concurrency": 1}) == wanted and run.state is not RunState.CANCELLED
        if same and not (run.executor and owner(home.path, run.executor)) \
                and home.store.queue.submission(run.id) is None:
            return run
    return None


def planned(run: Run, tasks: Sequence[Task]) -> list[Attempt]:
    """Every attempt of a run, in the order they are to be taken: first tries of all tasks before second ones."""
    order = product(range(run.spec.attempts), tasks, run.spec.agents)
    return [
        Attempt(
            id=attempt_id(run.id, number),
            run=run.id,
            project=run.project,
            task=task.id,
            agent=agent.name,
            index=index,
            seed=seed_of(run.spec.seed, task.id, index),
        )
        for number, (index, task, agent) in enumerate(order, start=1)
    ]


def seed_of(seed: int, task: str, index: int) -> int:
    """A seed of 31 bits for one attempt: the same for the same question, whatever the order of execution.

    It is the same for all agents: so the n-th attempts of two at a task, which are compared with each other, share
    their luck where chance is shared at all (common random numbers), and the difference between them varies less.
    """
    material = f"{seed}\0{task}\0{index}".encode()
    return int.from_bytes(hashlib.sha256(material).digest()[:4], "big") & 0x7FFF_FFFF


async def _nothing_further() -> Sequence[Attempt]:
    return ()


async def drive(home: Home, run: Run, crew: Crew, progress: Progress, further: Further = _nothing_further) -> Run:
    """Execute what is open of ``run``, then what ``further`` adds until it adds nothing; the finished Run."""
    attempts = home.store.attempts(run.id)
    tally = Tally(run.id, total=len(attempts))
    for attempt in attempts:
        if attempt.outcome is not None:
            tally.add(attempt.outcome)

    def finished(outcome: Outcome) -> None:
        tally.add(outcome)
        progress(tally)

    progress(tally)
    try:
        with crew.within(run.spec.deadlines.run_s), crew.steered():
            await crew.work([attempt for attempt in attempts if attempt.state is not AttemptState.DONE], finished)
            while more := await further():
                tally.total += len(more)
                progress(tally)
                await crew.work(more, finished)
    except Paused as paused:
        home.store.set_run_state(run.id, RunState.PAUSED, str(paused))
        raise
    except Cancelled as cancelled:
        home.store.set_run_state(run.id, RunState.CANCELLED, str(cancelled))
        raise Cancelled(f"{run.id} was cancelled: {cancelled}") from None
    except BaseException:
        with suppress(StoreFault):  # where the store is what failed, its own error is the one to tell
            over = further is _nothing_further and all(one.outcome for one in home.store.attempts(run.id))
            marked = home.store.alone.of(run.id)
            left = marked if marked is not None and marked.state is RunState.CANCELLED else None
            home.store.set_run_state(run.id, RunState.FINISHED if over else
                                     RunState.CANCELLED if left else RunState.INTERRUPTED, left and left.reason)
        raise
    home.store.set_run_state(run.id, RunState.FINISHED)
    return home.store.run(run.id)


def unchanged(run: Run) -> list[Task]:
    """The tasks of ``run``, as they were when it began. Raises UsageError for one that has changed or is gone."""
    tasks = find_tasks([Path(folder) for folder in run.spec.tasks])
    for task in tasks:
        if run.spec.digests.get(str(task.folder)) != task.digest:
            raise UsageError(
                f"the task has changed since {run.id} began", file=task.folder,
                remedy="Restore it, or start a new run.",
            )  # fmt: skip
    return tasks
