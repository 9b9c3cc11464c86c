"""Metrics: what a rollout service has done and has to do, as Prometheus' text (exposition format 0.0.4).

Gauges are told by the store, whoever did the work. Counters count from the start of this process on, as counters do.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from woodshed.model import AttemptState, Invalid, RunState
from woodshed.model.delivery import Count
from woodshed.model.drift import Drift
from woodshed.model.event import now
from woodshed.services import selection
from woodshed.services.home import Home
from woodshed.services.rollouts import DEFAULT, policies

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_MOST = 5_000  # attempts whose calls are read at one look; more wait for the next
Labels = tuple[tuple[str, str], ...]
Asked = tuple[str, RunState, datetime]


@dataclass(slots=True)
class Histogram:
    """Seconds by bucket; the last bucket has no bound."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def lines(self, name: str, labels: Labels = ()) -> Iterator[str]:
        """As text."""
        total = 0
        for bound, count in zip((*BOUNDS_S, None), self.counts, strict=True):
            total += count
            yield _line(f"{name}_bucket", total, (*labels, ("le", "+Inf" if bound is None else f"{bound:g}")))
        yield _line(f"{name}_sum", round(self.sum_s, 6), labels)
        yield _line(f"{name}_count", total, labels)


class Requests:
    """What was asked over HTTP, by route, method and status; safe to use from many threads."""

    def __init__(self) -> None:
        self._counts: Counter[Labels] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._running = 0
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[None]:
        """One is being answered, until this is left."""
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    def add(self, route: str, method: str, status: int, seconds: float) -> None:
        """One more answer. Methods that nobody knows are one."""
        method = method if method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS") else "other"
        with self._lock:
            self._counts[("route", route), ("method", method), ("status", str(status))] += 1
            self._seconds.setdefault(route, Histogram()).add(seconds)

    def lines(self) -> Iterator[str]:
        """As text."""
        with self._lock:
            yield from _family("woodshed_http_requests_total", "counter", "Answers, by route and status.",
                               dict(self._counts))
            yield from _single("woodshed_http_requests_running", "Requests being answered, those that wait included.",
                               self._running)
            yield from _head("woodshed_http_request_seconds", "histogram", "How long they took.")
            for route, histogram in sorted(self._seconds.items()):
                yield from histogram.lines("woodshed_http_request_seconds", (("route", route),))


@dataclass(slots=True)
class _Tally:
    """Attempts of one request, counted once when it is over."""

    attempts: Counter[Labels] = field(default_factory=Counter)
    valid: int = 0
    done: int = 0
    biased: bool = False


class Metrics:
    """Looks at one home; what is over is counted once. Not safe to use from two threads at once: :meth:`page` waits."""

    def __init__(self, home: Home, requests: Requests, project: str = DEFAULT) -> None:
        self._home, self._requests, self._project = home, requests, project
        self._since, self._over = now(), dict[str, _Tally]()
        self._counted: set[str] = set()
        self._calls: Counter[Labels] = Counter({(("result", "answered"),): 0, (("result", "failed"),): 0})
        self._drift: Counter[Labels] = Counter({(("drift", kind.value),): 0 for kind in Drift})
        self._seconds = Histogram()
        self._lock = threading.Lock()

    def page(self) -> str:
        """All of it. Raises StoreFault."""
        with self._lock:
            return "\n".join((*self._lines(), *self._requests.lines())) + "\n"

    def _lines(self) -> Iterator[str]:
        asked = self._home.store.rollouts.states(self._project)
        yield from self._attempts(asked)
        yield from self._groups(asked)
        yield from self._queue(asked)
        current = policies(self._home, self._project)
        yield from _family("woodshed_policy_version", "gauge", "The current version of a policy, where it is a number.",
                           {(("endpoint", name),): one.version for name, one in current.items()
                            if isinstance(one.version, int)})
        yield from _family("woodshed_gateway_calls_total", "counter",
                           "Model calls of attempts that ended since this process began.", dict(self._calls))
        yield from _family("woodshed_prompts_total", "counter",
                           "Their captured prompts, by how they went on from what had been told.", dict(self._drift))
        yield from _head("woodshed_gateway_call_seconds", "histogram", "How long the answered ones took.")
        yield from self._seconds.lines("woodshed_gateway_call_seconds")

    def _attempts(self, asked: Sequence[Asked]) -> Iterator[str]:
        tallies = [self._tally(run, state) for run, state, _ in asked]
        total: Counter[Labels] = Counter()
        for tally in tallies:
            total.update(tally.attempts)
        yield from _family("woodshed_attempts", "gauge", "Attempts by state, validity and cause.", total)
        done = sum(tally.done for tally in tallies)
        rate = sum(tally.valid for tally in tallies) / done if done else None
        yield from _single("woodshed_valid_rate", "Valid attempts, of those that are done.", rate)
        yield from _single("woodshed_selection_bias", "Requests that are over with a warning of selection bias.",
                           sum(tally.biased for tally in tallies))

    def _tally(self, run_id: str, state: RunState) -> _Tally:
        if run_id in self._over:
            return self._over[run_id]
        tally, fresh = _Tally(), []
        attempts = self._home.store.attempts(run_id)
        for attempt in attempts:
            verdict = attempt.outcome.verdict if attempt.outcome is not None else None
            valid = "" if verdict is None else "invalid" if isinstance(verdict, Invalid) else "valid"
            cause = verdict.cause.value if verdict is not None and verdict.cause is not None else ""
            tally.attempts[("state", attempt.state.value), ("validity", valid), ("cause", cause)] += 1
            tally.done += attempt.state is AttemptState.DONE
            tally.valid += valid == "valid"
            if attempt.finished_at is not None and attempt.finished_at >= self._since \
                    and attempt.id not in self._counted:
                fresh.append(attempt.id)
        self._count_calls(fresh[:_MOST])
        if state in (RunState.FINISHED, RunState.CANCELLED) and len(fresh) <= _MOST:
            found = selection.selected(self._home, self._home.store.run(run_id), attempts)
            tally.biased = any(one.bias.warns for one in found)
            self._over[run_id] = tally
        return tally

    def _count_calls(self, attempts: list[str]) -> None:
        for seconds, drift in self._home.store.rollouts.calls(attempts):
            if drift is not None:
                self._drift[(("drift", drift),)] += 1
            self._calls[(("result", "failed" if seconds is None else "answered"),)] += 1
            if seconds is not None:
                self._seconds.add(seconds)
        self._counted.update(attempts)

    def _groups(self, asked: Sequence[Asked]) -> Iterator[str]:
        store = self._home.store.rollouts
        counted, oldest = store.census(self._project), store.oldest_ready(self._project)
        yield from _family("woodshed_groups", "gauge", "Groups by what became of them.",
                           {(("state", name),): counted.get(name, 0) for name in Count.model_fields})
        yield from _single("woodshed_oldest_ready_group_seconds", "How long the oldest group waits for somebody.",
                           _age(oldest))
        states: Counter[Labels] = Counter((("state", state.value),) for _, state, _ in asked)
        yield from _family("woodshed_requests", "gauge", "Requests by the state of their run.", states)

    def _queue(self, asked: Sequence[Asked]) -> Iterator[str]:
        depth = self._home.store.queue.depth()
        yield from _family("woodshed_queue", "gauge", "Attempts that wait or run, of all shared runs.", {
            (("state", name),): getattr(depth, name) for name in ("ready", "delayed", "running", "quarantined")})
        first = next((created for _, state, created in asked if state is RunState.QUEUED), None)
        yield from _single("woodshed_oldest_queued_request_seconds",
                           "How long the oldest request waits of which nothing has begun.", _age(first))
        living = [one for one in self._home.store.queue.workers() if one.state != "gone"]
        yield from _family("woodshed_slots", "gauge", "Slots of all living workers.", {
            (("state", "offered"),): sum(one.slots for one in living),
            (("state", "busy"),): sum(one.busy for one in living)})
        yield from _single("woodshed_workers", "Living workers.", len(living))


def _family(name: str, kind: str, text: str, values: Mapping[Labels, float]) -> Iterator[str]:
    yield from _head(name, kind, text)
    for labels, value in sorted(values.items()):
        yield _line(name, value, labels)


def _single(name: str, text: str, value: float | None) -> Iterator[str]:
    """A gauge without labels; without a value where that is not known."""
    yield from _head(name, "gauge", text)
    if value is not None:
        yield _line(name, value)


def _age(since: datetime | None) -> float | None:
    return None if since is None else round(max(0.0, (now() - since).total_seconds()), 3)


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _line(name: str, value: float, labels: Labels = ()) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
