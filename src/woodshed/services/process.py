"""Process measures of attempts, from the store: each attempt's card, what agents come to, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from woodshed.errors import StoreFault, UsageError, VerifierFault
from woodshed.measure.costs import Tokens, asked
from woodshed.measure.process import AgentCard, Counted, Edited, Facts, by_agent, card, cell
from woodshed.measure.process.card import JUDGED
from woodshed.model import Attempt, AttemptState, ChangeKind, Event, Outcome, Run, Task, Valid, printable
from woodshed.model.event import now
from woodshed.model.grade import Patch
from woodshed.model.prices import PriceBook
from woodshed.model.process import Rating
from woodshed.services import naming, report
from woodshed.services.history import history
from woodshed.services.home import Home
from woodshed.services.source import Source, changes_of, grade_of
from woodshed.verify.patch import Unknown

Progress = Callable[[int, int], None]
"""Hears how many of how many attempts are measured."""
_CITED = 3
"""Attempts whose steps are cited for an agent's dimension, the worst first."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured of a run. ``left_out`` are attempts without a valid verdict, and why."""

    counted: list[Counted]
    agents: list[AgentCard]
    left_out: list[tuple[Attempt, str]]


def measured(
    home: Home, run: Run, prices: PriceBook | None = None, progress: Progress = lambda done, total: None
) -> Found:
    """The cards of all valid attempts of ``run``. Runs nothing. Raises StoreFault."""
    source, attempts = Source(home, run), home.store.attempts(run.id, AttemptState.DONE)
    models = {agent.name: agent.model.name if agent.model else None for agent in run.spec.agents}
    ratings = home.store.ratings.of(run.id)
    counted: list[Counted] = []
    left_out: list[tuple[Attempt, str]] = []
    for number, attempt in enumerate(attempts, 1):
        verdict = attempt.outcome.verdict if attempt.outcome else None
        if isinstance(verdict, Valid):
            facts = _facts(home, source, attempt, ratings.get(attempt.id, ()), prices, models[attempt.agent])
            counted.append(Counted(attempt.id, attempt.agent, attempt.task, verdict.passed, cell(facts), card(facts)))
        elif verdict is not None:
            left_out.append((attempt, f"invalid: {verdict.cause.value}"))
        progress(number, len(attempts))
    return Found(counted, by_agent(counted, _spent(attempts, prices, models)), left_out)


def of_attempt(home: Home, attempt: Attempt, prices: PriceBook | None = None) -> dict[str, Any]:
    """One attempt's card: ``{"attempt", "task", "agent", "passed", "claim", "scores", "measures": […]}``.

    Raises UsageError for one without a valid verdict.
    """
    run, name = home.store.run(attempt.run), attempt.id
    verdict = attempt.outcome.verdict if attempt.outcome else None
    if not isinstance(verdict, Valid):
        raise UsageError(f"{name} has no valid verdict: there is nothing to measure", field="attempt",
                         remedy=f"Look at it: woodshed trace {name}")
    model = next((agent.model.name for agent in run.spec.agents if agent.name == attempt.agent and agent.model), None)
    facts = _facts(home, Source(home, run), attempt, home.store.ratings.of(run.id).get(name, ()), prices, model)
    made = card(facts)
    return {
        "attempt": name, "task": attempt.task, "agent": attempt.agent, "passed": verdict.passed, "claim": cell(facts),
        "scores": made.to_json()["scores"], "measures": [measure.to_json() for measure in made.measures],
    }


def told(found: Found, run: Run) -> dict[str, Any]:
    """``{"run", "agents": […], "left_out": […], "attempts": […]}``; each agent says ``why``, by dimension.

    ``why`` has the steps that brought the dimension down, of its worst attempts first.
    """
    return {
        "run": run.id,
        "agents": [{**agent.to_json(), "why": _why(found.counted, agent.agent)} for agent in found.agents],
        "left_out": [{"attempt": attempt.id, "agent": attempt.agent, "task": attempt.task, "why": why}
                     for attempt, why in found.left_out],
        "attempts": [{"attempt": one.attempt, "task": one.task, "agent": one.agent, "passed": one.passed,
                      "claim": one.cell, "scores": one.card.to_json()["scores"]} for one in found.counted],
    }


def rate(home: Home, attempt_id: str, stars: int, note: str, by: str) -> Rating:
    """Record what a person thought of a finished attempt; ratings add up, none is ever replaced.

    Raises UsageError for an attempt that does not exist or is not done.
    """
    attempt = naming.attempt(home, attempt_id)
    if attempt.state is not AttemptState.DONE:
        raise UsageError(f"{attempt.id} is {attempt.state.value}: there is nothing to rate yet", field="attempt",
                         remedy="Wait until it is done.")
    rating = Rating(attempt=attempt.id, stars=stars, note=printable(note), by=printable(by), at=now())
    home.store.ratings.add(rating)
    return rating


def _why(counted: Sequence[Counted], agent: str) -> dict[str, list[dict[str, Any]]]:
    """By dimension, what brought it down: the worst attempts' citations, a few of each."""
    mine = [one for one in counted if one.agent == agent]
    why: dict[str, list[dict[str, Any]]] = {}
    for dimension in JUDGED:
        scored = [(score, one) for one in mine if (score := one.card.scores[dimension]) is not None and score < 1]
        for _, one in sorted(scored, key=lambda pair: pair[0])[:_CITED]:
            cited = [(measure.name, citation) for measure in one.card.measures if measure.dimension is dimension
                     for citation in measure.cited]
            why.setdefault(dimension.value, []).extend(
                {"attempt": one.attempt, "measure": name, **citation.to_json()} for name, citation in cited[:_CITED])
    return why


def _facts(
    home: Home, source: Source, attempt: Attempt, ratings: Sequence[Rating], prices: PriceBook | None, model: str | None
) -> Facts:
    outcome = attempt.outcome
    assert outcome is not None
    assert isinstance(outcome.verdict, Valid)
    events = history(home, attempt)
    task, unknown = source.tasks.get(attempt.task), dict[str, str]()
    patch, files = _patch(home, source, attempt.task, events, unknown)
    reference = source.reference(attempt.task)
    if reference is None:
        unknown["reference"] = "no attempt of the reference (agent oracle) at this task is in the store"
    failed = _failed_before(source, attempt.task, outcome.verdict, unknown)
    command = task.metadata.get("test_command") if task is not None else None
    return Facts(
        events=events, verdict=outcome.verdict, stopped=outcome.stop, patch=patch, files=files,
        reference=reference, failed_before=failed, ratings=tuple(ratings), usage=outcome.usage,
        workdir=task.environment.workdir if task is not None else "/workspace",
        test_command=command if isinstance(command, str) else "",
        micros=_micros(outcome, prices, model), unknown=unknown,
    )


def _patch(
    home: Home, source: Source, name: str, events: Sequence[Event], unknown: dict[str, str]
) -> tuple[Patch | None, tuple[Edited, ...] | None]:
    """The patch in lines, and the files with their contents; where one is unknown, ``unknown`` says why."""
    task, grade = source.tasks.get(name), grade_of(events)
    stepped = task is not None and bool(task.steps)  # a grade is then of one step alone
    then = grade.observed.patch if grade is not None and not stepped else None
    try:
        patch = then or source.patch(changes_of(events), task)[0]
        return patch, tuple(_edited(home, task, patch, events)) if task is not None else None
    except (Unknown, StoreFault, VerifierFault) as error:
        unknown.update(dict.fromkeys(("patch", "files"), str(error)))
        return then, None


def _edited(home: Home, task: Task, patch: Patch, events: Sequence[Event]) -> Iterator[Edited]:
    changes = changes_of(events)
    after = {change.path: change for change in (changes.changes if changes else ())}
    for file in patch.files:
        change = after.get(file.path)
        old = report.start(task, file.path)
        new = report.content(home, change) if change is not None and change.kind is ChangeKind.FILE else None
        too_large = change is not None and change.kind is ChangeKind.FILE and new is None
        binary = too_large or any(side is not None and not _text(side) for side in (old, new))
        yield Edited(file.path, old, new, binary)


def _text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in content


def _failed_before(source: Source, task: str, verdict: Valid, unknown: dict[str, str]) -> tuple[str, ...] | None:
    """The expected tests that fail on the untouched start."""
    passed = source.start_tests(task)
    if passed is None:
        unknown["start_tests"] = "no attempt that changed nothing (agent nop) at this task is in the store"
        return None
    loaded = source.tasks.get(task)
    expected = loaded.verifier.expected_tests if loaded is not None else tuple(verdict.tests)
    return tuple(name for name in expected if name not in passed)


def _micros(outcome: Outcome, prices: PriceBook | None, model: str | None) -> int | None:
    if prices is None or model is None:
        return None
    used = Tokens(outcome.usage.prompt_tokens, outcome.usage.completion_tokens)
    return asked(prices, model, used, outcome.stages_s.get("act", 0.0))


def _spent(
    attempts: Sequence[Attempt], prices: PriceBook | None, models: dict[str, str | None]
) -> dict[str, tuple[int, int | None]]:
    """(tokens, micros) of all of each agent's attempts."""
    spent: dict[str, tuple[int, int | None]] = {}
    for attempt in attempts:
        if attempt.outcome is not None:
            tokens, micros = spent.get(attempt.agent, (0, 0))
            mine = _micros(attempt.outcome, prices, models[attempt.agent])
            usage = attempt.outcome.usage
            spent[attempt.agent] = (tokens + usage.prompt_tokens + usage.completion_tokens,
                                    None if micros is None or mine is None else micros + mine)
    return spent

