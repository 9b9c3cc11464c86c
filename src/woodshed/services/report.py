"""What a run came to: its summary, its attempts, and the trace of one, all derived from the store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from woodshed.errors import StoreFault, UsageError
from woodshed.measure import figures as measure
from woodshed.measure.costs import Tokens, asked
from woodshed.measure.trajectory import from_events
from woodshed.measure.usage import used
from woodshed.model import (
    Attempt,
    AttemptState,
    ChangeSet,
    Durability,
    Event,
    EventKind,
    Invalid,
    Run,
    RunState,
    Task,
    Valid,
)
from woodshed.model.changes import Change
from woodshed.model.diff import described
from woodshed.model.prices import PriceBook
from woodshed.model.used import total
from woodshed.services import naming, selection
from woodshed.services.cutoff import CutOff, cut_off
from woodshed.services.history import history
from woodshed.services.home import Home
from woodshed.store.captures import DRIFTS, FLAWED
from woodshed.tasks.load import find_tasks

_LARGEST_DIFF = 1_000_000  # bytes of a file that is compared; a larger one is told by its size


def summary(
    home: Home, run: Run, *, prices: PriceBook | None = None
) -> dict[str, Any]:
    """In figures: ``{"run", "project", "state", "reason", "elapsed_s", "used": {…}, "agents": […], "groups": […]}``.

    ``elapsed_s`` is :func:`elapsed`, ``used`` what sandboxes took by ``agent``, ``verifier`` and ``all``.
    ``agents`` has one row an agent, ``groups``
    one an agent and task group; both rows have the same keys. Rates are None where undefined: no valid attempts give no
    pass rate. Of a run whose persons a model plays, ``person`` is what that took, by ``prices``; no row counts it.
    """
    attempts = home.store.attempts(run.id)
    left = cut_off(home, run, attempts)
    models = {agent.name: agent.model.name if agent.model else None for agent in run.spec.agents}
    return {
        "run": run.id,
        "project": run.project,
        "state": run.state.value,
        "reason": run.reason,
        "elapsed_s": elapsed(run, attempts),
        **({"drawn": run.spec.drawn.to_json()} if run.spec.drawn else {}),
        **_captured(home, run),
        **_person(home, run, prices),
        **selection.told(selection.selected(home, run, attempts)),
        "used": {whose: part.to_json() for whose, part in used(
            [*(a.outcome.used for a in attempts if a.outcome), *(one.used for one in left.values())]).items()},
        "agents": [{"model": models[row.agent], **row.to_json()} for row in measure.by_agent(attempts)],
        "groups": [{"model": models[row.agent], **row.to_json()} for row in measure.summary(attempts, run.spec.groups)],
    }


def _person(home: Home, run: Run, prices: PriceBook | None) -> dict[str, Any]:
    """Of a run whose persons a model plays: ``person``, its calls and tokens; ``micros`` where it has a price."""
    if run.spec.person is None:
        return {}
    name, spent = run.spec.person.name, home.store.persons.spent(run.id)
    tokens = Tokens(spent.prompt_tokens, spent.completion_tokens)
    micros = None if prices is None else asked(prices, name, tokens, spent.seconds)
    return {"person": {"model": name, **asdict(spent), "micros": micros,
                       "currency": None if prices is None else prices.currency}}


def _captured(home: Home, run: Run) -> dict[str, Any]:
    """Of a run whose calls are captured: ``capture``, calls by level, and what cannot be trained on."""
    if not any(agent.model.captures for agent in run.spec.agents if agent.model):
        return {}
    lasting = [agent.name for agent in run.spec.agents if agent.durability is Durability.FINE]
    counted = home.store.captures.of(run.id, lasting=lasting)
    levels = Counter[str]()
    for one in counted.values():
        levels.update(one)
    flawed = levels.pop(FLAWED, 0)
    drift = {kind: count for name, kind in DRIFTS.items() if (count := levels.pop(name, 0))}
    return {"capture": {"calls": dict(levels), "flawed_calls": flawed, "drift": drift,
                        "flawed_attempts": sum(FLAWED in one for one in counted.values())}}


def attempts(home: Home, run: Run) -> list[dict[str, Any]]:
    """One flat row an attempt: verdict, stop reason, flags, usage, seconds; ``cut_off`` is why there is no result."""
    found = home.store.attempts(run.id)
    left = cut_off(home, run, found)
    return [_row(attempt, left.get(attempt.id)) for attempt in found]


def listing(home: Home, project: str | None = None) -> list[dict[str, Any]]:
    """All runs, newest first; or those of one project."""
    rows = []
    for run in home.store.runs(project):
        mine = home.store.attempts(run.id)
        rows.append(
            {
                "run": run.id,
                "project": run.project,
                "state": run.state.value,
                "reason": run.reason,
                "agents": [agent.name for agent in run.spec.agents],
                "tasks": len(run.spec.tasks),
                "attempts": len(mine),
                "done": sum(attempt.state is AttemptState.DONE for attempt in mine),
                "created_at": run.created_at.strftime("%Y-%m-%d %H:%M:%S"),
            }
        )
    return rows


def write_results(home: Home, run: Run, figures: dict[str, Any]) -> Path:
    """Leave ``summary.json`` and ``attempts.jsonl`` in ``runs/RUN`` of the state folder; the folder."""
    folder = home.path / "runs" / run.id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "summary.json", json.dumps(figures, indent=1) + "\n")
        _replace(folder / "attempts.jsonl", "".join(json.dumps(row) + "\n" for row in attempts(home, run)))
    except OSError as error:
        raise StoreFault(f"results of {run.id} could not be written: {error}") from error
    return folder


def trace(home: Home, attempt_id: str) -> dict[str, Any]:
    """One attempt, readable: steps, diff, verdict. Raises UsageError when there is no such attempt.

    One that has not begun has no steps.
    """
    attempt = naming.attempt(home, attempt_id)
    run = home.store.run(attempt.run)
    execution = attempt.executions
    events = history(home, attempt)
    agent = next(agent for agent in run.spec.agents if agent.name == attempt.agent)
    model = agent.model.name if agent.model else None
    steps = from_events(events, task=attempt.task, agent=attempt.agent, model=model).steps if events else ()
    changes = _changes(events)
    left, outcome = cut_off(home, run, [attempt]).get(attempt.id), attempt.outcome
    return {
        **_row(attempt, left),
        "execution": execution,
        "model": model,
        "fork": run.spec.fork.to_json() if run.spec.fork else None,
        "steps": [step.to_json() for step in steps],
        "changes": [change.to_json() for change in changes.changes],
        "refused": list(changes.refused),
        "flagged": list(changes.flagged),
        "diff": diff(home, changes, _task(run, attempt.task)),
        "verdict": outcome.verdict.to_json() if outcome else None,
        "stages_s": outcome.stages_s if outcome else left.stages_s if left else {},
        "used": {stage: took.to_json() for stage, took in (outcome or left or CutOff("")).used.items()},
    }


def diff(home: Home, changes: ChangeSet, task: Task | None) -> str:
    """The captured changes as a unified diff against the task's own start files."""
    return "".join(
        described(change, start(task, change.path), content(home, change)) for change in changes.changes
    )


def arguments(call: dict[str, Any]) -> str:
    """A tool call's arguments on a line or, for one long text, as it stands."""
    values = call["arguments"]
    if not values:
        return call["raw"] or ""
    if len(values) == 1:
        return str(next(iter(values.values())))
    return json.dumps(values, ensure_ascii=False)


def sentence_of(told: Mapping[str, Any]) -> str:
    """The verdict of a traced attempt in one line; where there is none, why."""
    if told["verdict"] is None and told["cut_off"]:
        return f"none: {told['cut_off']}" + ("; what it did until then is kept" if told["steps"] else "")
    return sentence(told["verdict"])


def sentence(verdict: dict[str, Any] | None) -> str:
    """A verdict in one line."""
    if verdict is None:
        return "none yet"
    if verdict["kind"] == "invalid":
        return f"invalid ({verdict['cause']}): {verdict['detail']}"
    rewards = ", ".join(f"{name} {value}" for name, value in verdict["rewards"].items())
    passed = Valid.model_validate(verdict).passed
    if verdict["total"] != verdict["rewards"].get("reward", verdict["total"]):
        rewards += f"  total {'unknown' if verdict['total'] is None else round(verdict['total'], 4)}"
    word = "passed" if passed else f"failed ({verdict['cause'] or 'agent'})"
    flags = f"  [{', '.join(verdict['flags'])}]" if verdict["flags"] else ""
    detail = f"\n{verdict['detail']}" if verdict["detail"] else ""
    return f"valid: {word}  {rewards}  assurance {verdict['assurance']}{flags}{detail}"


def content(home: Home, change: Change) -> bytes | None:
    """What a changed file holds; None where it is no file, or too large to be looked at."""
    if change.sha256 is None or change.size > _LARGEST_DIFF:
        return None
    with home.blobs.open(change.sha256) as source:
        return source.read()


def start(task: Task | None, path: str) -> bytes | None:
    """What stood at a sandbox path when the attempt began, as far as the task's own files tell."""
    for upload in task.environment.uploads if task else ():
        target = upload.target.rstrip("/")
        if path != target and not path.startswith(target + "/"):
            continue
        found = upload.source / path.removeprefix(target).lstrip("/")
        if found.is_file() and not found.is_symlink() and found.stat().st_size <= _LARGEST_DIFF:
            return found.read_bytes()
    return None


def _task(run: Run, task_id: str) -> Task | None:
    """The task as it lies on disk now; None when its folder is gone or broken (the trace goes on without it)."""
    for folder in run.spec.tasks:
        try:
            found = find_tasks([Path(folder)])
        except UsageError:
            continue
        if found[0].id == task_id:
            return found[0]
    return None


def _changes(events: Iterable[Event]) -> ChangeSet:
    for event in events:
        if event.kind is EventKind.CHANGES and "changes" not in event.data:
            return ChangeSet(refused=("more changes than an event can hold",))
        if event.kind is EventKind.CHANGES:
            return ChangeSet.model_validate(event.data)
    return ChangeSet()


def _row(attempt: Attempt, left: CutOff | None = None) -> dict[str, Any]:
    outcome = attempt.outcome
    verdict = outcome.verdict if outcome else None
    valid = verdict if isinstance(verdict, Valid) else None
    took = outcome or (left if left is not None and attempt.executions else None)
    return {
        "attempt": attempt.id,
        "task": attempt.task,
        "agent": attempt.agent,
        "index": attempt.index,
        "state": attempt.state.value,
        "executions": attempt.executions,
        "valid": None if verdict is None else valid is not None,
        "passed": valid.passed if valid else None,
        "total": valid.total if valid else None,
        "rewards": valid.rewards if valid else None,
        "cause": verdict.cause.value if verdict and verdict.cause else None,
        "flags": list(valid.flags) if valid else [],
        "assurance": valid.assurance.value if valid else None,
        "detail": verdict.detail if isinstance(verdict, Valid | Invalid) else "",
        "stop": outcome.stop.value if outcome else left.stop if left else None,
        "cut_off": left.why if left else None,
        "turns": outcome.usage.turns if outcome else None,
        "tool_calls": outcome.usage.tool_calls if outcome else None,
        "prompt_tokens": outcome.usage.prompt_tokens if outcome else None,
        "completion_tokens": outcome.usage.completion_tokens if outcome else None,
        "seconds": round(sum(took.stages_s.values()), 4) if took else None,
        "used": total(took.used.values()).to_json() if took else None,
    }


def elapsed(run: Run, attempts: Sequence[Attempt]) -> float:
    """Seconds from when the run was asked for to its end; of one that is not over, to its last result. 0.0 before that.

    It is told from the record, so that every command tells the same of a run, whenever and however often it is asked.
    """
    over = run.finished_at if run.state in (RunState.FINISHED, RunState.CANCELLED) else None
    end = over or max((attempt.finished_at for attempt in attempts if attempt.finished_at), default=run.created_at)
    return round(max(0.0, (end - run.created_at).total_seconds()), 3)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)
