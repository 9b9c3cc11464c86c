"""Plan: what a run will take, from what is recorded of its tasks and agents, before a machine is paid for it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from woodshed.engine.capacity import cores
from woodshed.errors import UsageError
from woodshed.measure import costs
from woodshed.measure.rare import tries_for, upper_bound
from woodshed.measure.simulation import Forecast, Limits, Node, forecast, order_of, quantile
from woodshed.model import Agent, Run, RunSpec, Task
from woodshed.model.counted import counted
from woodshed.model.prices import PriceBook
from woodshed.model.retry import RetryRules
from woodshed.services import naming, runs
from woodshed.services.declared import read_toml
from woodshed.services.home import Home
from woodshed.services.recorded import Pair, Recorded, key, recorded

THIN = 20
"""Fewer executions than these say little."""
CLAIMED = 0.02
"""The rate of broken attempts that a plan tells the pilots for."""
_MOST_WORKERS = 100_000
_CROWD = re.compile(r"(\d{1,6})(?:[xX](\d{1,6}))?", re.ASCII)
_ROUNDS_SOUGHT = 10  # of the simulations by which a number of workers is sought

Tell = Callable[[str], None]
Simulated = Callable[["Crowd"], Forecast]


@dataclass(frozen=True, slots=True)
class Crowd:
    """The workers of a plan: ``workers`` machines of ``slots`` attempts at a time and ``cores`` processors each."""

    workers: int
    slots: int
    cores: float

    @property
    def in_all(self) -> int:
        """Attempts at a time."""
        return self.workers * self.slots

    def nodes(self, from_s: float, *, cpu_known: bool) -> list[Node]:
        """As the simulation wants them; where no processor time is known, processors bound nothing."""
        return [Node(self.slots, cores=self.cores if cpu_known else math.inf, from_s=from_s)] * self.workers


@dataclass(frozen=True, slots=True)
class Question:
    """``attempts`` of each task by each agent on a crowd; with ``within_s`` also how many workers make it in time."""

    tasks: Sequence[Task]
    agents: Sequence[Agent]
    attempts: int
    crowd: Crowd
    rules: RetryRules = field(default_factory=RetryRules)
    limits: Limits = field(default_factory=Limits)
    book: PriceBook | None = None
    within_s: float | None = None
    seed: int = 0
    rounds: int = 30

    @property
    def pairs(self) -> list[Pair]:
        """Every task with every agent."""
        return [(task.id, agent.name) for task, agent in product(self.tasks, self.agents)]


def parse_workers(text: str, cores: int) -> tuple[int, int]:
    """``4x16`` is four workers of 16 slots; without slots, one a processor. Raises UsageError for anything else."""
    found = _CROWD.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= _MOST_WORKERS or not 1 <= int(found[2] or cores) <= _MOST_WORKERS:
        raise UsageError(f"{text!r} is no number of workers", field="--workers",
                         remedy="Say 4, or 4x16 for four workers of 16 slots each.")
    return int(found[1]), int(found[2] or cores)


def load_prices(file: Path) -> PriceBook:
    """The price book of a TOML file. Raises UsageError naming file, field and remedy."""
    return PriceBook.parse(read_toml(file, "docs/planning.md"), file=file)


def check_prices(book: PriceBook, agents: Sequence[Agent], file: Path) -> None:
    """Every model has a price. Raises UsageError naming the field that is missing."""
    for agent in agents:
        if agent.model is not None and book.of(agent.model.name) is None:
            raise UsageError("the model has no price", file=file, field=f"model.{agent.model.name}",
                             remedy='Add its table, or one of [model."*"] for all others.')


def evidence(home: Home, question: Question, names: Sequence[str] = ()) -> Recorded:
    """What is recorded: of the runs named, or of all that are stored, the newest first. Raises UsageError."""
    chosen = [naming.run(home, name) for name in names] if names else home.store.runs()
    return recorded(home, question.tasks, question.agents, chosen)


def agents_of(home: Home, names: Sequence[str]) -> tuple[Agent, ...]:
    """The agents of the runs named, each name once."""
    found = {agent.name: agent for name in names for agent in naming.run(home, name).spec.agents}
    return tuple(found.values())


def pilot_spec(question: Question, count: int, *, engine: str) -> tuple[RunSpec, list[Task]]:
    """A run of about ``count`` attempts to measure by, and its tasks: evenly chosen where there are more of them."""
    per_round = len(question.tasks) * len(question.agents)
    if count >= per_round:
        chosen, attempts = list(question.tasks), count // per_round
    else:
        wanted = max(1, count // len(question.agents))
        chosen = [question.tasks[index * len(question.tasks) // wanted] for index in range(wanted)]
        attempts = 1
    together = min(question.crowd.slots, cores(), attempts * len(chosen) * len(question.agents))
    return runs.plan([task.folder for task in chosen], question.agents, attempts=attempts, concurrency=together,
                     seed=question.seed, engine=engine, retry=question.rules, quarantined=True)


async def pilot(home: Home, spec: RunSpec, tasks: Sequence[Task], progress: runs.Progress) -> Run:
    """Run it, like any other."""
    return await runs.start(home, spec, tasks, progress)


def told(question: Question, found: Recorded) -> dict[str, Any]:
    """The answer, as ``woodshed plan --json`` prints it. Raises UsageError where nothing at all is recorded."""
    if not found.executions:
        raise UsageError("nothing is recorded of these tasks by these agents", field="TASKS",
                         remedy="Add --pilot 20, which runs so many attempts first.")
    simulated = _simulated(question, found)
    expected = simulated(question.crowd)
    return {
        "tasks": len(question.tasks), "agents": [agent.name for agent in question.agents],
        "attempts": question.attempts * len(question.pairs), "workers": question.crowd.workers,
        "slots": question.crowd.in_all, "forecast": asdict(expected),
        "stages": stage_shares(found), "cost": _cost(question, found, question.crowd, expected),
        "needed": _needed(question, simulated),
        "around": [_row(question, found, crowd, simulated(crowd)) for crowd in _around(question)],
        "evidence": _evidence(found, question), "warnings": list(_warnings(question, found, expected)),
        "seed": question.seed,
    }


def stage_shares(found: Recorded) -> dict[str, float]:
    """What part of an execution each stage is, the longest first."""
    whole = sum(found.stages_s.values())
    ordered = sorted(found.stages_s.items(), key=lambda item: -item[1])
    return {name: seconds / whole for name, seconds in ordered} if whole else {}


def _forecast(question: Question, found: Recorded, crowd: Crowd, rounds: int) -> Forecast:
    order = list(order_of([key(pair) for pair in question.pairs], question.attempts))
    return forecast(
        order, found.for_simulation(question.pairs), crowd.nodes(found.start_s, cpu_known=found.cpu_known),
        limits=question.limits, rules=question.rules, seed=question.seed, rounds=rounds, resample=True,
    )


def _simulated(question: Question, found: Recorded) -> Simulated:
    """Each crowd's forecast, made once, so that a question has one answer; those that are told by as many rounds.

    Of fewer rounds is what is only tried while the number of workers is sought.
    """
    told = {question.crowd, *_around(question)}

    @cache
    def simulated(crowd: Crowd) -> Forecast:
        rounds = question.rounds if crowd in told else min(question.rounds, _ROUNDS_SOUGHT)
        return _forecast(question, found, crowd, rounds)

    return simulated


def _around(question: Question) -> list[Crowd]:
    """The same question with half, twice and four times the workers."""
    crowd = question.crowd
    counts = sorted({max(1, crowd.workers // 2), crowd.workers, crowd.workers * 2, crowd.workers * 4})
    return [Crowd(count, crowd.slots, crowd.cores) for count in counts if count <= _MOST_WORKERS]


def _row(question: Question, found: Recorded, crowd: Crowd, expected: Forecast) -> dict[str, Any]:
    cost = _cost(question, found, crowd, expected)
    return {
        "workers": crowd.workers, "slots": crowd.in_all, "makespan_p50_s": expected.makespan_p50_s,
        "makespan_p90_s": expected.makespan_p90_s, "slots_used": expected.slots_used,
        "bottleneck": expected.bottleneck, "micros": cost["micros_p50"] if cost else None,
    }


def _needed(question: Question, simulated: Simulated) -> dict[str, Any] | None:
    """The fewest workers whose 90th percentile is within the time asked for; ``workers`` None: no number is enough."""
    if question.within_s is None:
        return None

    def late(count: int) -> bool:
        crowd = Crowd(count, question.crowd.slots, question.crowd.cores)
        return simulated(crowd).makespan_p90_s > float(question.within_s or 0)

    enough = math.ceil(question.attempts * len(question.pairs) / question.crowd.slots)
    low, high = 0, min(enough, _MOST_WORKERS)
    if late(high):
        return {"within_s": question.within_s, "workers": None, "slots": None}
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if late(middle) else (low, middle)
    return {"within_s": question.within_s, "workers": high, "slots": high * question.crowd.slots}


def _cost(question: Question, found: Recorded, crowd: Crowd, expected: Forecast) -> dict[str, Any] | None:
    """The bill at the median and at the 90th percentile of the time; None without a price book."""
    book = question.book
    if book is None:
        return None
    tokens = _tokens(question, found, expected)
    kept_gb = (sum(found.disk_mb) / len(found.disk_mb) if found.disk_mb else 0.0) \
        * question.attempts * len(question.pairs) / 1024
    at = {name: costs.bill(book, makespan_s=span, workers=crowd.workers, tokens=tokens, kept_gb=kept_gb)
          for name, span in (("p50", expected.makespan_p50_s), ("p90", expected.makespan_p90_s))}
    return {"currency": book.currency, "lines": [asdict(line) for line in at["p50"]],
            "micros_p50": costs.total(at["p50"]), "micros_p90": costs.total(at["p90"])}


def _tokens(question: Question, found: Recorded, expected: Forecast) -> dict[str, costs.Tokens]:
    """What each model will be asked: the forecast's tokens, by the agents' shares of what is recorded."""
    models = {agent.name: agent.model.name for agent in question.agents if agent.model is not None}
    seen: dict[str, float] = dict.fromkeys(models.values(), 0.0)
    for (_, agent), samples in found.samples.items():
        if agent in models:
            seen[models[agent]] += sum(one.prompt_tokens + one.completion_tokens for one in samples) / len(samples)
    whole = sum(seen.values())
    return {name: costs.Tokens(round(expected.prompt_tokens * part / whole),
                               round(expected.completion_tokens * part / whole))
            for name, part in seen.items() if whole}


def _evidence(found: Recorded, question: Question) -> dict[str, Any]:
    memory = quantile(sorted(found.memory_mb), 0.9) if found.memory_mb else None
    return {
        "runs": found.runs, "executions": found.executions, "broken": found.broken, "lost": found.lost,
        "elsewhere": found.elsewhere, "tasks_unmeasured": len(found.unmeasured(question.pairs)),
        "cpu_known": found.cpu_known, "slots_then": max(found.slots, default=0),
        "memory_p90_mb": memory, "worker_memory_mb": None if memory is None else memory * question.crowd.slots,
        "broken_at_most": upper_bound(found.broken, found.executions), "claimed": CLAIMED,
        "pilots_for_claim": tries_for(CLAIMED),
    }


def _warnings(question: Question, found: Recorded, expected: Forecast) -> list[str]:
    """What whoever relies on the plan should know."""
    said = []
    if found.executions < THIN:
        said.append(f"recorded: only {counted(found.executions, 'execution')}; fewer than {THIN} say little")
    if missing := found.unmeasured(question.pairs):
        names = ", ".join(task for task, _ in missing[:3])
        said.append(f"{len(missing)} of {len(question.pairs)} tasks were never measured and are taken to be like the "
                    f"others: {names}{' …' if len(missing) > 3 else ''}")
    if found.elsewhere:
        said.append(f"recorded in another home: {counted(found.elsewhere, 'execution')}, perhaps on another machine")
    if not found.cpu_known and question.crowd.slots > max(found.slots, default=0):
        said.append(f"processor time is not recorded, and {question.crowd.slots} slots a worker are more than the "
                    f"{max(found.slots, default=0)} that were measured: what they slow each other is not in it")
    if found.lost:
        said.append(f"died with their worker, which is not in it: {counted(found.lost, 'execution')}")
    if expected.given_up >= 0.5:
        said.append(f"about {counted(round(expected.given_up), 'attempt')} will stay broken after their retries")
    return said
