"""Simulation: how long a run will take, and what it waits for. Discrete events over recorded executions; pure.

An attempt draws one recorded execution of its task (bootstrap: Efron 1979), and occupies a slot of a node for as long
as that took; processor time stretches by what the node has more at work than processors. An execution that broke costs
its time, waits as the retry rules say, and is tried again. Where a model endpoint serves so many at once, an execution
needs one of its places for as long as it asked the model. A node that fails loses what it had; that is tried again
once the silence is noticed, and, after a second such loss, alone: one of all of those at a time, as in the queue's
quarantine. Everything random comes from one seed.
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


@dataclass(frozen=True, slots=True)
class Limits:
    """What all nodes share: ``places`` at the model endpoint, and how soon after another an attempt may begin.

    ``apart_s`` is what each beginning costs the queue, whose claims are made one at a time; ``per_minute`` is the rate
    that the queue keeps for the endpoint.
    """

    places: int | None = None
    apart_s: float = 0.0
    per_minute: float | None = None

    @property
    def between_s(self) -> float:
        """Seconds between two beginnings, at least."""
        return max(self.apart_s, 60.0 / self.per_minute if self.per_minute else 0.0)


@dataclass(frozen=True, slots=True)
class Failures:
    """Nodes that fail: each after ``mean_s`` of work on average (exponential), back after ``repair_s``.

    What a node had is free again ``noticed_s`` after it fell silent.
    """

    mean_s: float
    repair_s: float = 600.0
    noticed_s: float = 10.0


SUSPECT = 2
"""An attempt lost with so many nodes runs alone from then on; as :mod:`woodshed.store.queue` has it."""


@dataclass(slots=True)
class Simulated:
    """One round. ``busy_s`` is slot-seconds used, ``waited_s`` the time waited at the endpoint with a slot in hand.

    ``lost_s`` is the part of ``busy_s`` that was lost with nodes; ``alone`` counts attempts that had to run alone, and
    ``main_s`` is when all others were done. ``most_s`` is when 99 of a hundred attempts were.
    """

    makespan_s: float = 0.0
    executions: int = 0
    given_up: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    model_s: float = 0.0
    waited_s: float = 0.0
    retried_s: float = 0.0
    lost_s: float = 0.0
    failures: int = 0
    alone: int = 0
    main_s: float = 0.0
    most_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    most_at_once: int = 0


@dataclass(slots=True, eq=False)
class _Attempt:
    """``turn`` counts what was drawn for it: an event of an earlier turn is void."""

    task: str
    past: list[Broken] = field(default_factory=list)
    drawn: Sample | None = None
    begun_s: float = 0.0
    speaks: bool = False
    turn: int = 0
    deaths: int = 0

    @property
    def sample(self) -> Sample:
        assert self.drawn is not None
        return self.drawn


_ASIDE = -1
"""The place of what runs alone: no node's."""


class _World:
    """The state of one round; events are (time, order, what, attempt, node, turn)."""

    def __init__(
        self, tasks: Sequence[str], samples: Mapping[str, Sequence[Sample]], nodes: Sequence[Node],
        limits: Limits, failures: Failures | None, rules: RetryRules, seed: int,
    ) -> None:
        self.samples, self.nodes, self.rules, self.failures = samples, nodes, rules, failures
        self.chance = random.Random(seed)  # noqa: S311 (a simulation must repeat)
        self.out = Simulated()
        self.ready = deque(_Attempt(task) for task in tasks)
        self.left = len(self.ready)
        self.few = self.left // 100
        self.places = math.inf if limits.places is None else float(limits.places)
        self.between_s, self.gate = limits.between_s, 0.0
        self.at_endpoint: deque[tuple[float, _Attempt, int, int]] = deque()
        self.events: list[tuple[float, int, str, _Attempt | None, int, int]] = []
        self.order = iter(range(1 << 62))
        self.works: list[dict[_Attempt, None]] = [{} for _ in nodes]
        self.load = [0.0] * len(nodes)
        self.door = [node.from_s for node in nodes]  # when the node can begin another
        self.down = [False] * len(nodes)
        self.suspects: deque[_Attempt] = deque()
        self.alone: _Attempt | None = None
        self.at_once = 0

    def at(self, when: float, what: str, attempt: _Attempt | None, node: int) -> None:
        turn = attempt.turn if attempt is not None else 0
        heapq.heappush(self.events, (when, next(self.order), what, attempt, node, turn))

    # -- an execution, from its slot to its end ------------------------------------------------------------------------

    def fill(self, now: float, node: int) -> None:
        """Begin what waits, as far as the node has slots."""
        works, has = self.works[node], self.nodes[node]
        while self.ready and not self.down[node] and len(works) < has.slots:
            attempt = self.ready.popleft()
            works[attempt] = None
            self.at_once += 1
            self.out.most_at_once = max(self.out.most_at_once, self.at_once)
            begins = max(now, self.door[node]) + has.begins_s
            if self.between_s:
                self.gate = begins = max(begins, self.gate + self.between_s)
            self.door[node] = begins
            self.draw(begins, attempt, node)

    def draw(self, begins: float, attempt: _Attempt, node: int) -> None:
        attempt.drawn = self.chance.choice(self.samples[attempt.task])
        attempt.begun_s = begins
        self.at(begins, "begun", attempt, node)

    def begun(self, now: float, attempt: _Attempt, node: int) -> None:
        if attempt.sample.model_s and self.places <= 0:
            self.at_endpoint.append((now, attempt, node, attempt.turn))
            return
        self.act(now, attempt, node)

    def act(self, now: float, attempt: _Attempt, node: int) -> None:
        sample, stretch = attempt.sample, 1.0
        if node != _ASIDE:
            self.load[node] += _share(sample)
            stretch = max(1.0, self.load[node] / self.nodes[node].cores)
        attempt.begun_s = now
        if sample.model_s:
            self.places -= 1
            attempt.speaks = True
            self.at(now + sample.model_s, "spoke", attempt, node)
        self.at(now + sample.seconds - sample.cpu_s + sample.cpu_s * stretch, "ended", attempt, node)

    def spoke(self, now: float, attempt: _Attempt) -> None:
        """Its place at the endpoint is free for who waits longest."""
        if not attempt.speaks:
            return
        attempt.speaks = False
        self.places += 1
        while self.at_endpoint:
            since, waiting, there, turn = self.at_endpoint.popleft()
            if waiting.turn == turn:
                self.out.waited_s += now - since
                self.act(now, waiting, there)
                return

    def ended(self, now: float, attempt: _Attempt, node: int) -> None:
        self.spoke(now, attempt)
        sample = attempt.sample
        attempt.turn += 1
        if node == _ASIDE:
            self.alone = None
        else:
            del self.works[node][attempt]
            self.load[node] -= _share(sample)
            self.at_once -= 1
        self._count(sample)
        self._settle(now, attempt, sample, node)
        if node == _ASIDE:
            self.aside(now)
        else:
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
        if self.left == self.few:
            self.out.most_s = now
        self.out.makespan_s = max(self.out.makespan_s, now)
        if node != _ASIDE:
            self.out.main_s = max(self.out.main_s, now)

    def again(self, now: float, attempt: _Attempt) -> None:
        """It may be tried again: on any node with a free slot, or alone."""
        if attempt.deaths >= SUSPECT:
            self.out.alone += attempt.deaths == SUSPECT
            attempt.deaths += 1
            self.suspects.append(attempt)
            self.aside(now)
            return
        self.ready.append(attempt)
        for node, has in enumerate(self.nodes):
            if len(self.works[node]) < has.slots and has.from_s <= now and not self.down[node]:
                self.fill(now, node)
                return

    def aside(self, now: float) -> None:
        if self.alone is None and self.suspects:
            self.alone = self.suspects.popleft()
            self.draw(now, self.alone, _ASIDE)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def opens(self, now: float, node: int) -> None:
        self.down[node] = False
        if self.failures is not None:
            self.at(now + self.chance.expovariate(1.0 / self.failures.mean_s), "fails", None, node)
        self.fill(now, node)

    def fails(self, now: float, node: int) -> None:
        """The node is silent; what it had is lost, and free again once that is noticed."""
        assert self.failures is not None
        self.down[node] = True
        self.out.failures += 1
        lost, self.works[node] = self.works[node], {}
        self.load[node] = 0.0
        for attempt in lost:
            self.at_once -= 1
            spent = max(0.0, now - attempt.begun_s)
            self.out.lost_s += spent
            self.out.busy_s += spent
            self.out.executions += 1
            attempt.turn += 1
            attempt.deaths += 1
            self.spoke(now, attempt)
            self.at(now + self.failures.noticed_s, "again", attempt, node)
        self.at(now + self.failures.repair_s, "opens", None, node)

    def run(self) -> Simulated:
        for index, opening in enumerate(self.nodes):
            self.at(opening.from_s, "opens", None, index)
        while self.events and self.left:
            now, _, what, attempt, node, turn = heapq.heappop(self.events)
            if attempt is None:
                (self.opens if what == "opens" else self.fails)(now, node)
            elif attempt.turn != turn:
                continue
            elif what == "again":
                self.again(now, attempt)
            elif what == "spoke":
                self.spoke(now, attempt)
            else:
                (self.begun if what == "begun" else self.ended)(now, attempt, node)
        return self.out


def _share(sample: Sample) -> float:
    """Processors that the execution kept busy, on average."""
    return sample.cpu_s / sample.seconds if sample.seconds > 0 else 0.0


def simulate(
    tasks: Sequence[str], samples: Mapping[str, Sequence[Sample]], nodes: Sequence[Node], *,
    limits: Limits | None = None, failures: Failures | None = None, rules: RetryRules | None = None, seed: int = 0,
) -> Simulated:
    """One round: ``tasks`` names the task of every attempt, in the order they are taken.

    Raises ValueError for a task without samples, and where there is no slot.
    """
    missing = sorted({task for task in tasks if not samples.get(task)})
    if missing:
        raise ValueError(f"nothing is recorded of {missing[0]}")
    if not any(node.slots > 0 for node in nodes):
        raise ValueError("there is no slot")
    return _World(tasks, samples, nodes, limits or Limits(), failures, rules or RetryRules(), seed).run()


@dataclass(frozen=True, slots=True)
class Forecast:
    """Quantiles and means over rounds. ``bottleneck`` is what a faster run needs more of.

    That is ``slots``, ``processors``, places at the ``endpoint``, its ``rate``, the ``queue`` that hands attempts out,
    what must run ``alone``, or nothing of these: ``the longest attempts``. ``use`` has the share of each that was used,
    where it is bounded; ``added_by_retries_s`` is what a run without retries and losses would be sooner, at the median.
    """

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
    use: dict[str, float]
    added_by_retries_s: float
    lost_share: float
    alone: float


def forecast(
    tasks: Sequence[str], samples: Mapping[str, Sequence[Sample]], nodes: Sequence[Node], *,
    limits: Limits | None = None, failures: Failures | None = None, rules: RetryRules | None = None, seed: int = 0,
    rounds: int = 30, resample: bool = False,
) -> Forecast:
    """What to expect of a run, from ``rounds`` simulations with seeds that follow ``seed``. Raises as ``simulate``.

    With ``resample`` each round has its own draw of as many samples of all there are: then the spread also tells how
    little few samples say.
    """
    bounds = limits or Limits()
    chance = random.Random(seed)  # noqa: S311 (a simulation must repeat)
    made = [simulate(tasks, _redrawn(samples, chance) if resample else samples, nodes, limits=bounds,
                     failures=failures, rules=rules, seed=seed + n) for n in range(rounds)]
    spans = sorted(one.makespan_s for one in made)
    mean = _Means(made)
    span = max(quantile(spans, 0.5), 1e-9)
    use = _use(mean, nodes, bounds, span)
    slots = sum(node.slots for node in nodes)
    return Forecast(
        rounds=rounds, makespan_p50_s=quantile(spans, 0.5), makespan_p90_s=quantile(spans, 0.9),
        slot_hours=mean("busy_s") / 3600, cpu_hours=mean("cpu_s") / 3600, model_hours=mean("model_s") / 3600,
        prompt_tokens=round(mean("prompt_tokens")), completion_tokens=round(mean("completion_tokens")),
        executions=mean("executions"), retries=mean("executions") - len(tasks),
        retry_share=mean("retried_s") / max(mean("busy_s"), 1e-9), given_up=mean("given_up"),
        slots_used=min(1.0, mean("busy_s") / (slots * span)), bottleneck=_bottleneck(use), use=use,
        added_by_retries_s=_added(tasks, samples, nodes, bounds, seed, span, mean),
        lost_share=mean("lost_s") / max(mean("busy_s"), 1e-9), alone=mean("alone"),
    )


def _redrawn(samples: Mapping[str, Sequence[Sample]], chance: random.Random) -> dict[str, list[Sample]]:
    """As many of each task as there are, drawn with replacement."""
    return {task: chance.choices(found, k=len(found)) for task, found in samples.items()}


def _added(
    tasks: Sequence[str], samples: Mapping[str, Sequence[Sample]], nodes: Sequence[Node], limits: Limits, seed: int,
    span: float, mean: _Means,
) -> float:
    """Seconds that a run is longer at the median than one in which nothing breaks; 0 where nothing did."""
    if mean("executions") <= len(tasks):
        return 0.0
    whole = {task: [one for one in found if one.broken is None] or list(found) for task, found in samples.items()}
    rules = RetryRules(infrastructure=0, model=0)
    rounds = min(len(mean), 10)
    spans = sorted(simulate(tasks, whole, nodes, limits=limits, rules=rules, seed=seed + n).makespan_s
                   for n in range(rounds))
    return max(0.0, span - quantile(spans, 0.5))


class _Means:
    def __init__(self, made: Sequence[Simulated]) -> None:
        self._made = made

    def __call__(self, name: str) -> float:
        return float(sum(getattr(one, name) for one in self._made)) / len(self._made)

    def __len__(self) -> int:
        return len(self._made)


def _use(mean: _Means, nodes: Sequence[Node], limits: Limits, span: float) -> dict[str, float]:
    """The share of everything bounded that a run uses, over its median time."""
    use = {"slots": mean("busy_s") / (sum(node.slots for node in nodes) * span)}
    cores = sum(node.cores for node in nodes)
    if math.isfinite(cores):
        use["processors"] = mean("cpu_s") / (cores * span)
    if limits.places:
        use["endpoint"] = mean("model_s") / (limits.places * span)
    if limits.per_minute:
        use["rate"] = mean("executions") * 60.0 / limits.per_minute / span
    if limits.apart_s:
        use["queue"] = mean("executions") * limits.apart_s / span
    if mean("alone"):
        use["alone"] = (mean("makespan_s") - mean("main_s")) / span
    return use


def _bottleneck(use: Mapping[str, float]) -> str:
    name = max(use, key=lambda name: use[name])
    return name if use[name] > 0.5 else "the longest attempts"


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics (type 7 of Hyndman and Fan 1996)."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def order_of(tasks: Sequence[str], attempts: int) -> Iterator[str]:
    """The task of every attempt in the order runs take them: first tries of all tasks before second ones."""
    for _ in range(attempts):
        yield from tasks
