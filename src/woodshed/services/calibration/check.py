"""A check of tasks: a run like any other, whose later attempts follow from what the earlier ones found.

First every task is attempted by nobody and by its reference. Where that says something, more follows in the same run:
known cheats, variants of the reference (end states that nobody acts, judged as they are), and further repeats where a
task's files speak of chance. All evidence is the run's attempts and events; :mod:`.report` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from woodshed import plugins
from woodshed.errors import WoodshedError
from woodshed.model import (
    Agent,
    Assurance,
    Attempt,
    CheckSpec,
    Run,
    RunSpec,
    RunState,
    Task,
    Valid,
    VerifierSpec,
)
from woodshed.model.event import now
from woodshed.model.retry import RetryRule, RetryRules
from woodshed.services import projects, runs
from woodshed.services.calibration import evidence, variants
from woodshed.services.calibration.tree import Ends, Tree, start_tree
from woodshed.services.crew import Crew
from woodshed.services.home import Home
from woodshed.services.runtime import EndState
from woodshed.store.ids import attempt_id, new_run_id
from woodshed.verify.run import Case

NOP, ORACLE, VARIANT = "nop", "oracle", "variant"
VERIFIER = "calibrating"
RETRY = RetryRules(retry=(RetryRule(max=2, backoff_s=0.0),), breaker=None)
_TIMES, _LEAST_S = 10.0, 2.0
"""A variant's tests get this many times as long as the reference's took, and so many seconds more: a mutant that never
ends is failed then, and not after the whole of the declared time."""
_REPEATING_S = 15.0
"""Further repeats of a doubtful task may take this long, in all."""
_CHANCE = re.compile(
    rb"^\s*(?:import|from)\s+(?:threading|asyncio|secrets|uuid|multiprocessing|datetime|concurrent|socket)\b|"
    rb"random|urandom|time\.\w*(?:time|sleep|monotonic|counter)\w*\(|getpid|Date\.now|new Date\(\)|setTimeout|"
    rb"\bsleep\s|\bdate\s+\+",
    re.MULTILINE | re.IGNORECASE,
)


def plan(tasks: Sequence[Task], check: CheckSpec, *, concurrency: int, seed: int, engine: str) -> RunSpec:
    """The run that checks ``tasks``. Its agents are all that any of them may be attempted by."""
    cheats = sorted({name for task in tasks for name in _cheats(task, check, Assurance.OUT_OF_PROCESS)})
    agents = [
        Agent(name=NOP, harness=NOP), Agent(name=ORACLE, harness=ORACLE),
        Agent(name=VARIANT, harness=NOP),  # nobody acts: its end states are given
        *(Agent(name=name, harness=name) for name in cheats),
    ]  # fmt: skip
    return RunSpec(
        tasks=tuple(str(task.folder) for task in tasks),
        digests={str(task.folder): task.digest for task in tasks},
        groups={task.id: task.group for task in tasks},
        agents=tuple(agents),
        attempts=check.references,
        concurrency=concurrency,
        seed=seed,
        engine=engine,
        verifier=VERIFIER,
        retry=RETRY,
        check=check,
    )


async def start(home: Home, spec: RunSpec, tasks: Sequence[Task], progress: runs.Progress) -> Run:
    """Create the run and drive it to its end, as :func:`woodshed.services.runs.start` does."""
    run = Run(id=new_run_id(), project=projects.named(None), spec=spec, created_at=now())
    async with Crew(home, run, tasks) as crew:
        check = _Check(home, run, tasks, crew)
        home.store.create_run(run.model_copy(update={"executor": crew.executor}), check.first())
        return await check.drive(progress)


async def resume(home: Home, run_id: str, progress: runs.Progress, *, concurrency: int | None = None) -> Run:
    """Finish an interrupted check. Raises UsageError when there is none, its owner lives, or a task has changed."""
    run = runs.to_resume(home, run_id, checking=True, concurrency=concurrency)
    if run.state is RunState.FINISHED:
        return run
    tasks = runs.unchanged(run)
    async with Crew(home, run, tasks) as crew:
        crew.take_over()
        return await _Check(home, run, tasks, crew).drive(progress)


@dataclass(slots=True)
class _Check:
    home: Home
    run: Run
    tasks: Sequence[Task]
    crew: Crew
    found: dict[str, variants.Findings] = field(default_factory=dict)
    patience: dict[str, Task] = field(default_factory=dict)
    """Tasks as variants are judged: with a verifier that waits no longer than makes sense."""

    def __post_init__(self) -> None:
        self.crew.give(self._given)

    @property
    def spec(self) -> CheckSpec:
        """What is asked."""
        return self.run.spec.check or CheckSpec()

    async def drive(self, progress: runs.Progress) -> Run:
        """The finished run."""
        return await runs.drive(self.home, self.run, self.crew, progress, self.further)

    def first(self) -> list[Attempt]:
        """What every task is attempted by: nobody, and its reference."""
        wanted = [(task, NOP, index) for index in range(self.spec.nops) for task in self.tasks]
        wanted += [(task, ORACLE, index) for index in range(self.spec.references) for task in self.tasks
                   if task.solution is not None]
        return self._attempts(wanted, 0)

    async def further(self) -> list[Attempt]:
        """What follows from the first attempts; nothing where it has been planned before."""
        made = self.home.store.attempts(self.run.id)
        if len(made) > len(self.first()) or self._planned():
            return []
        wanted: list[tuple[Task, str, int]] = []
        by_task = evidence.by_task(made)
        for task in self.tasks:
            wanted += await self._follows(task, by_task.get(task.id, []))
        attempts = self._attempts(wanted, len(made))
        self.home.store.add_attempts(self.run.id, attempts)
        return attempts

    def _planned(self) -> bool:
        return len(self.found) == len(self.tasks)

    async def _follows(self, task: Task, made: Sequence[Attempt]) -> list[tuple[Task, str, int]]:
        reference = next((one for one in made if one.agent == ORACLE and evidence.passed(one)), None)
        untouched = [one for one in made if one.agent == NOP and evidence.valid(one)]
        findings = variants.Findings()
        wanted: list[tuple[Task, str, int]] = []
        if untouched or reference is not None:
            findings = await self._findings(task, reference, asked=not any(map(evidence.passed, untouched)))
        if reference is not None and not any(map(evidence.passed, untouched)):
            wanted += [(task, ORACLE, index) for index in self._repeats(task, made)]
            known = {agent.name for agent in self.run.spec.agents}  # a resumed check may have begun with fewer cheats
            wanted += [(task, name, 0) for name in _cheats(task, self.spec, _assurance(reference)) if name in known]
        variants.keep(self.home, self.run.id, task, findings)
        self._take_up(task, findings, made)
        return wanted + [(task, VARIANT, index) for index in range(len(findings.variations))]

    async def _findings(self, task: Task, reference: Attempt | None, *, asked: bool) -> variants.Findings:
        """What the start leaks, and the variants where they are worth judging."""
        try:
            async with start_tree(task, self.crew.engine) as tree:
                ends = await self._ends(task, reference, tree) if reference is not None else []
                made: list[variants.Variation] = []
                if asked and ends:
                    of = variants.by_step(task, ends, seed=self.run.spec.seed, at_most=self.spec.variants) \
                        if task.steps else variants.variations(task, ends[0], seed=self.run.spec.seed,
                                                               at_most=self.spec.variants)
                    made = list(of)
                return variants.Findings(leaks=variants.leaks(task, tree, ends), variations=tuple(made))
        except (WoodshedError, OSError) as error:
            return variants.Findings(unexplored=f"neither leaks nor variants were looked for: {error}")

    async def _ends(self, task: Task, reference: Attempt, tree: Tree) -> list[Ends]:
        """Where the reference ends: the task, or each of its steps."""
        changes = evidence.changes(self.home, reference)
        case = Case(task, self.home.blobs, self.crew.engine, lambda kind, data: None)
        if task.steps:
            return await variants.step_ends(task, changes, tree, case)
        return [await variants.reference_ends(task, changes[0], tree, case)]

    def _repeats(self, task: Task, made: Sequence[Attempt]) -> range:
        """Indices of further attempts by the reference, where its repeats might still disagree."""
        quick = evidence.verify_s(self.home, made) or 0.0
        most = min(self.spec.doubtful, self.spec.references + int(_REPEATING_S / max(quick, 0.01)))
        return range(self.spec.references, most if _speaks_of_chance(task) else self.spec.references)

    def _attempts(self, wanted: Sequence[tuple[Task, str, int]], before: int) -> list[Attempt]:
        run = self.run
        return [
            Attempt(id=attempt_id(run.id, number), run=run.id, project=run.project, task=task.id, agent=agent,
                    index=index, seed=runs.seed_of(run.spec.seed, task.id, index))
            for number, (task, agent, index) in enumerate(wanted, before + 1)
        ]

    def _given(self, attempt: Attempt) -> EndState | None:
        if attempt.agent != VARIANT:
            return None
        if not self.patience:
            by_task = evidence.by_task(self.home.store.attempts(self.run.id))
            for task in self.tasks:
                findings = variants.kept(self.home, self.run.id, task) or variants.Findings()
                self._take_up(task, findings, by_task.get(task.id, []))
        chosen = self.found[attempt.task].variations[attempt.index]
        task = self.patience[attempt.task]
        return EndState(task if chosen.step is None else task.at(chosen.step), chosen.changes,
                        f"variant of the reference: {chosen.survivor.name}")

    def _take_up(self, task: Task, findings: variants.Findings, made: Sequence[Attempt]) -> None:
        self.found[task.id] = findings
        self.patience[task.id] = _impatient(task, evidence.verify_s(self.home, made)) if findings.variations else task


def _impatient(task: Task, reference_s: float | None) -> Task:
    if reference_s is None:
        return task
    bound = min(task.verifier.timeout_s, _TIMES * reference_s + _LEAST_S)
    verifier: VerifierSpec = task.verifier.model_copy(update={"timeout_s": bound})
    steps = tuple(step.model_copy(update={"verifier": step.verifier.model_copy(
        update={"timeout_s": min(step.verifier.timeout_s, bound)})}) for step in task.steps)
    return task.model_copy(update={"verifier": verifier, "steps": steps})


def _cheats(task: Task, check: CheckSpec, assurance: Assurance) -> list[str]:
    return plugins.cheats(task, assurance, slow=check.cheats == "all") if check.cheats != "none" else []


def _assurance(reference: Attempt) -> Assurance:
    verdict = reference.outcome.verdict if reference.outcome else None
    return verdict.assurance if isinstance(verdict, Valid) else Assurance.REPORT_ONLY


def _speaks_of_chance(task: Task) -> bool:
    """True where the task's own files use time, chance, threads or the network: then five repeats tell little."""
    folders: list[Path] = [task.verifier.tests, *(upload.source for upload in task.environment.uploads)]
    for folder in folders if task.solution is None else [*folders, task.solution]:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 1_000_000 \
                    and _CHANCE.search(path.read_bytes()):
                return True
    return False
