"""What is recorded of tasks and agents, as a simulation wants it: slot-seconds, processor time and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from woodshed.engine.lease import of_this_home
from woodshed.errors import Cause
from woodshed.measure.occupancy import Span, most_at_once, of_a_slot
from woodshed.measure.simulation import Sample
from woodshed.model import Agent, Attempt, Invalid, Outcome, Run, Task
from woodshed.services.home import Home
from woodshed.store import ExecutionState
from woodshed.store.records import Execution

Pair = tuple[str, str]
"""A task's id and an agent's name."""

_OWN = 5
"""Of a task with so many executions, its own breaks are believed; of others, the share of all tasks."""


@dataclass(slots=True)
class Recorded:
    """Executions by task and agent. ``stages_s`` is their wall seconds by stage, in all.

    ``lost`` died with a worker and are in no sample; ``elsewhere`` were made in another home, perhaps on another
    machine; ``slots`` is how many attempts the runs had at work at once; ``start_s`` is how long runs in one process
    took to begin; ``cpu_known`` says whether the sandboxes' processor time stands in all samples.
    """

    samples: dict[Pair, list[Sample]] = field(default_factory=dict)
    stages_s: dict[str, float] = field(default_factory=dict)
    memory_mb: list[float] = field(default_factory=list)
    disk_mb: list[float] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    lost: int = 0
    elsewhere: int = 0
    cpu_known: bool = True

    @property
    def executions(self) -> int:
        """How many there are."""
        return sum(map(len, self.samples.values()))

    @property
    def broken(self) -> int:
        """How many of them were made invalid by a fault of ours."""
        return sum(one.broken is not None for found in self.samples.values() for one in found)

    @property
    def start_s(self) -> float:
        """Seconds before the first attempt of a run begins; 0.0 where no run tells."""
        return median(self.starts_s) if self.starts_s else 0.0

    def unmeasured(self, pairs: Iterable[Pair]) -> list[Pair]:
        """Of which nothing is recorded."""
        return [pair for pair in pairs if not self.samples.get(pair)]

    def for_simulation(self, pairs: Sequence[Pair]) -> dict[str, list[Sample]]:
        """Samples by :func:`key`. A pair that was never measured draws from all tasks of its agent, else from all.

        A task with few executions says nothing of how often things break; it gets the share of all.
        """
        share = self.broken / self.executions if self.executions else 0.0
        faults = [one for found in self.samples.values() for one in found if one.broken is not None]
        return {key(pair): _mixed(self._near(pair), faults, share) for pair in pairs}

    def _near(self, pair: Pair) -> list[Sample]:
        if found := self.samples.get(pair):
            return found
        same = [one for (_, agent), found in self.samples.items() if agent == pair[1] for one in found]
        return same or [one for found in self.samples.values() for one in found]


def key(pair: Pair) -> str:
    """The name of a pair in a simulation."""
    return "\0".join(pair)


def _mixed(own: Sequence[Sample], faults: Sequence[Sample], share: float) -> list[Sample]:
    valid = [one for one in own if one.broken is None]
    if len(own) >= _OWN or not valid or not faults:
        return list(own)
    copies = max(1, round(len(faults) * (1 - share) / share / len(valid)))
    return valid * copies + list(faults)


def recorded(
    home: Home, tasks: Sequence[Task], agents: Sequence[Agent], runs: Sequence[Run], *, most: int = 5_000
) -> Recorded:
    """What ``runs`` hold of these tasks, unchanged since, by these agents; at most about ``most`` executions."""
    found = Recorded()
    digests = {task.id: task.digest for task in tasks}
    for run in runs:
        if found.executions >= most:
            break
        if run.spec.check is None and run.spec.fork is None:  # a branch does a part of the work alone
            _add(home, run, digests, {agent.name: agent for agent in agents}, found)
    return found


def _add(home: Home, run: Run, digests: Mapping[str, str], agents: Mapping[str, Agent], found: Recorded) -> None:
    same = {agent.name for agent in run.spec.agents if agent.name in agents and _alike(agent, agents[agent.name])}
    unchanged = set(run.spec.digests.values())
    if not same or not unchanged & set(digests.values()):
        return
    executions = [(attempt, one) for attempt in home.store.attempts(run.id)
                  for one in home.store.executions(attempt.id) if attempt.executions]
    spans = [_span(one) for _, one in executions if one.finished_at is not None]
    shared = home.store.queue.submission(run.id) is not None
    slots = most_at_once(spans) if shared else run.spec.concurrency
    factor, before = of_a_slot(spans, slots), found.executions
    for attempt, one in executions:
        if attempt.agent in same and digests.get(attempt.task) in unchanged:
            _take(home, attempt, one, factor, agents[attempt.agent], found)
    if found.executions > before:
        found.runs.append(run.id)
        found.slots.append(slots)
        if not shared and not any(one.state is ExecutionState.LOST for _, one in executions):
            found.starts_s.append(max(0.0, min(begin for begin, _ in spans) - run.created_at.timestamp()))


def _alike(one: Agent, other: Agent) -> bool:
    return one.harness == other.harness and (one.model and one.model.name) == (other.model and other.model.name)


def _take(home: Home, attempt: Attempt, one: Execution, factor: float, agent: Agent, found: Recorded) -> None:
    """One execution becomes a sample, unless it was cut off by somebody or with its worker."""
    found.lost += one.state is ExecutionState.LOST
    outcome = one.outcome
    if one.finished_at is None or outcome is None or one.state not in (ExecutionState.DONE, ExecutionState.SET_ASIDE):
        return
    if isinstance(outcome.verdict, Invalid) and (outcome.verdict.cause is Cause.CANCELLED or outcome.broke is None):
        return
    begin, end = _span(one)
    used = outcome.used_in_all
    known = used.sandboxes > 0 and used.cpu_s is not None
    found.cpu_known &= known
    seconds = max((end - begin) * factor, 1e-6)
    found.samples.setdefault((attempt.task, attempt.agent), []).append(Sample(
        seconds=seconds, cpu_s=min(used.cpu_s or 0.0, seconds) if known else 0.0,
        model_s=min(outcome.stages_s.get("act", 0.0), seconds) if agent.model else 0.0,
        memory_mb=(used.memory_peak_bytes or 0) / 2**20,
        prompt_tokens=outcome.usage.prompt_tokens, completion_tokens=outcome.usage.completion_tokens,
        broken=outcome.broke,
    ))
    found.elsewhere += not of_this_home(home.path, one.executor)
    _weigh(outcome, found)


def _weigh(outcome: Outcome, found: Recorded) -> None:
    for name, seconds in outcome.stages_s.items():
        found.stages_s[name] = found.stages_s.get(name, 0.0) + seconds
    used = outcome.used_in_all
    if used.memory_peak_bytes is not None:
        found.memory_mb.append(used.memory_peak_bytes / 2**20)
    if used.disk_bytes is not None:
        found.disk_mb.append(used.disk_bytes / 2**20)


def _span(one: Execution) -> Span:
    assert one.finished_at is not None
    return one.started_at.timestamp(), one.finished_at.timestamp()
