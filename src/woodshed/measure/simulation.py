"""Simulation: how long a run will take, and what it waits for. Discrete events over recorded executions; pure.

An attempt draws one recorded execution of its task (bootstrap: Efron 1979), and occupies a slot of a node for as long
as that took; processor time stretches by what the node has more at work than processors. An execution that broke costs
its time, waits as the retry rules say, and is tried again. Where a model endpoint serves so many at once, acting also
needs one of its places. Everything random comes from one seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from woodshed.model.retry import Broken, RetryRules


@dataclass(frozen=True, slots=True)
class Sample:
    """One recorded execution: seconds in a slot, of which ``model_s`` at the model's and ``cpu_s`` on processors.

    ``broken`` is the fault that made it invalid, None where it was valid.
    """

    seconds: float
    cpu_s: float = 0.0
    model_s: float = 0.0
    memory_mb: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    broken: Broken | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A machine: its slots and processors, from ``from_s`` on.

    ``begins_s`` is what beginning an attempt costs it alone: the queue's own work, which no second slot speeds up.
    """

    slots: int
    cores: float = math.inf
    from_s: float = 0.0
    begins_s: float = 0.0


@dataclass(slots=True)
class Simulated:
    """One round. ``busy_s`` is slot-seconds used, ``waited_s`` the time waited at the endpoint with a slot in hand."""

    makespan_s: float = 0.0
    executions: int = 0
    given_up: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    model_s: float = 0.0
    waited_s: float = 0.0
    retried_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    most_at_once: int = 0


@dataclass(slots=True)
class _Attempt:
    task: str
    past: list[Broken] = field(default_factory=list)
    drawn: Sample | None = None


class _World:
    """The state of one round; events are (time, order, what, attempt, node)."""

    def __init__(
        self, tasks: Sequence[str], samples: Mapping[str, Sequence[Sample]], nodes: Sequence[Node],
        places: float, rules: RetryRules, seed: int,
    ) -> None:
        self.samples, self.nodes, self.rules = samples, nodes, rules
        self.chance = random.Random(seed)  # noqa: S311 (a simulation must repeat)
        self.out = Simulated()
        self.ready = deque(_Attempt(task) for task in tasks)
        self.left = len(self.ready)
        self.free_places = places
        self.queue_at_endpoint: deque[tuple[float, _Attempt, int]] = deque()
        self.events: list[tuple[float, int, str, _Attempt | None, int]] = []
        self.order = iter(range(1 << 62))
        self.used = [0] * len(nodes)
        self.load = [0.0] * len(nodes)
        self.door = [node.from_s for node in nodes]  # when the node can begin another
        self.at_once = 0

    def at(self, when: float, what: str, attempt: _Attempt | None, node: int) -> None:
        heapq.heappush(self.events, (when, next(self.order), what, attempt, node))

    def fill(self, now: float, node: int) -> None:
        """Begin what waits, as far as the node has slots."""
        while self.ready and self.used[node] < self.nodes[node].slots:
            attempt = self.ready.popleft()
            self.used[node] += 1
            self.at_once += 1
            self.out.most_at_once = max(self.out.most_at_once, self.at_once)
            self.door[node] = begins = max(now, self.door[node]) + self.nodes[node].begins_s
            attempt.drawn = self.chance.choice(self.samples[attempt.task])
            self.at(begins, "begun", attempt, node)

    def begun(self, now: float, attempt: _Attempt, node: int) -> None:
        assert attempt.drawn is not None
        if attempt.drawn.model_s and self.free_places <= 0:
            self.queue_at_endpoint.append((now, attempt, node))
            return
        self.act(now, attempt, node)

    def act(self, now: float, attempt: _Attempt, node: int) -> None:
        sample = attempt.drawn
        assert sample is not None
        if sample.model_s:
            self.free_places -= 1
        share = sample.cpu_s / sample.seconds if sample.seconds > 0 else 0.0
        self.load[node] += share
        stretch = max(1.0, self.load[node] / self.nodes[node].cores)
        self.at(now + sample.seconds - sample.cpu_s + sample.cpu_s * stretch, "ended", attempt, node)

    def ended(self, now: float, attempt: _Attempt, node: int) -> None:
        sample = attempt.drawn
        assert sample is not None
        self.used[node] -= 1
        self.at_once -= 1
        self.load[node] -= sample.cpu_s / sample.seconds if sample.seconds > 0 else 0.0
        if sample.model_s:
            self.free_places += 1
            if self.queue_at_endpoint:
                since, waiting, there = self.queue_at_endpoint.popleft()
                self.out.waited_s += now - since
                self.act(now, waiting, there)
        self._count(sample)
        self._settle(now, attempt, sample, node)
        self.fill(now, node)

    def _count(self, sample: Sample) -> None:
        out = self.out
        out.executions += 1
        out.busy_s += sample.seconds
        out.cpu_s += sample.cpu_s
        out.model_s += sample.model_s
        out.prompt_tokens += sample.prompt_tokens
        out.completion_tokens += sample.completion_tokens

    def _settle(self, now: float, attempt: _Attempt, sample: Sample, node: int) -> None:
        if sample.broken is not None:
            self.out.retried_s += sample.seconds
            attempt.past.append(sample.broken)
            wait = self.rules.wait_s(attempt.past, self.chance.random())
            if wait is not None:
                self.at(now + wait, "again", attempt, node)
                return
            self.out.given_up += 1
        self.left -= 1
        self.out.makespan_s = max(self.out.makespan_s, now)

    def again(self, now: float, attempt: _Attempt) -> None:
        self.ready.append(attempt)
        for node in range(len(self.nodes)):
            if self.used[node] < self.nodes[node].slots and self.nodes[node].from_s <= now:
                self.fill(now, node)
                return

    def run(self) -> Simulated:
        for index, opening in enumerate(self.nodes):
            self.at(opening.from_s, "opens", None, index)
        while self.events and self.left:
            now, _, what, attempt, node = heapq.heappop(self.events)
            if what == "opens":
                self.fill(now, node)
            elif what == "again":
                assert attempt is not None
                self.again(now, attempt)
            else:
                assert attempt is not None
                (self.begun if what == "begun" else self.ended)(now, attempt, node)
        return self.out


def simulate(
    tasks: Sequence[str], samples: Mapping[str, Sequence[Sample]], nodes: Sequence[Node], *,
    places: int | None = None, rules: RetryRules | None = None, seed: int = 0,
) -> Simulated:
    """One round: ``tasks`` names the task of every attempt, in the order they are taken.

    ``places`` is how many attempts the model endpoint serves at once. Raises ValueError for a task without samples, and
    where there is no slot.
    """
    missing = sorted({task for task in tasks if not samples.get(task)})
    if missing:
        raise ValueError(f"nothing is recorded of {missing[0]}")
    if not any(node.slots > 0 for node in nodes):
        raise ValueError("there is no slot")
    free = math.inf if places is None else float(places)
    return _World(tasks, samples, nodes, free, rules or RetryRules(), seed).run()


@dataclass(frozen=True, slots=True)
class Forecast:
    """Quantiles over rounds. ``bottleneck`` is what a faster run needs more of: slots, processors, the endpoint."""

    rounds: int
    makespan_p50_s: float
    makespan_p90_s: float
    slot_hours: float
    cpu_hours: float
    model_hours: float
    prompt_tokens: int
    completion_tokens: int
    executions: float
    retries: float
    retry_share: float
    given_up: float
    slots_used: float
    bottleneck: str


def forecast(
    tasks: Sequence[str], samples: Mapping[str, Sequence[Sample]], nodes: Sequence[Node], *,
    places: int | None = None, rules: RetryRules | None = None, seed: int = 0, rounds: int = 30,
) -> Forecast:
    """What to expect of a run, from ``rounds`` simulations with seeds that follow ``seed``."""
    made = [simulate(tasks, samples, nodes, places=places, rules=rules, seed=seed + n) for n in range(rounds)]
    spans = sorted(one.makespan_s for one in made)
    mean = _Means(made)
    span = max(_quantile(spans, 0.5), 1e-9)
    slots = sum(node.slots for node in nodes)
    return Forecast(
        rounds=rounds, makespan_p50_s=_quantile(spans, 0.5), makespan_p90_s=_quantile(spans, 0.9),
        slot_hours=mean("busy_s") / 3600, cpu_hours=mean("cpu_s") / 3600, model_hours=mean("model_s") / 3600,
        prompt_tokens=round(mean("prompt_tokens")), completion_tokens=round(mean("completion_tokens")),
        executions=mean("executions"), retries=mean("executions") - len(tasks),
        retry_share=mean("retried_s") / max(mean("busy_s"), 1e-9), given_up=mean("given_up"),
        slots_used=min(1.0, mean("busy_s") / (slots * span)),
        bottleneck=_bottleneck(mean, nodes, places, span),
    )


class _Means:
    def __init__(self, made: Sequence[Simulated]) -> None:
        self._made = made

    def __call__(self, name: str) -> float:
        return float(sum(getattr(one, name) for one in self._made)) / len(self._made)


def _bottleneck(mean: _Means, nodes: Sequence[Node], places: int | None, span: float) -> str:
    use = {"slots": mean("busy_s") / (sum(node.slots for node in nodes) * span)}
    cores = sum(node.cores for node in nodes)
    if math.isfinite(cores):
        use["processors"] = mean("cpu_s") / (cores * span)
    if places:
        use["endpoint"] = mean("model_s") / (places * span)
    name = max(use, key=lambda name: use[name])
    return name if use[name] > 0.5 else "the longest attempts"


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics (type 7 of Hyndman and Fan 1996)."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def order_of(tasks: Sequence[str], attempts: int) -> Iterator[str]:
    """The task of every attempt in the order runs take them: first tries of all tasks before second ones."""
    for _ in range(attempts):
        yield from tasks
