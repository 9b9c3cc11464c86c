"""Rollouts as trainers ask for them: each request is a shared run, of which whole groups are handed out.

Everything here is synchronous and short; :mod:`woodshed.services.deliveries` hands the groups out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from woodshed.errors import Cause, Conflict, Missing, UsageError
from woodshed.model import Attempt, AttemptState, EventKind, Invalid, Outcome, Run, RunState, StopReason, Valid
from woodshed.model.delivery import (
    Announced,
    Asked,
    AttemptTold,
    Made,
    PolicyTold,
    Requested,
    RequestTold,
    RequestWhole,
)
from woodshed.model.event import now
from woodshed.services import curriculum, runs, selection, shared
from woodshed.services.home import Home
from woodshed.services.offer import Offer
from woodshed.store.eventlog import EventLog
from woodshed.store.ids import new_run_id
from woodshed.store.queue import SubmissionState
from woodshed.store.rollouts import Counted, Policy, Request

Tell = Callable[[str], None]
PAGE = 50
DEFAULT = "default"
"""The project that requests are of, unless the operator names another."""
_AFTER = {"": "prepare", "prepare": "act", "act": "capture", "capture": "verify", "verify": "close", "grade": "close"}
"""What an attempt is at, by the last stage that it is through with."""
_NAMESPACE = "rollouts:"


def ask(home: Home, offer: Offer, asked: Asked) -> Made:
    """The request, recorded and left to workers; asked for again with its key, the same one.

    Raises Conflict where the key was another request's, or its policy is too old; Missing and UsageError for what is
    not offered.
    """
    digest, key = _digest(asked), asked.idempotency_key
    if key is not None and (earlier := home.store.rollouts.find(offer.project, key)) is not None:
        return _again(home, earlier, digest)
    notes: list[str] = []
    with _without_places(offer):
        label, version = _policy(home, offer, asked)
        agent, _ = offer.agent(asked, version=version)
        spec, tasks = runs.plan(
            offer.folders(asked.tasks), [agent], attempts=asked.n, concurrency=2, seed=asked.seed, engine=offer.engine,
            deadlines=asked.deadlines, retry=asked.retry, strict=offer.strict, tell=notes.append)
        if asked.sample is not None:
            spec, tasks = curriculum.narrowed(home, spec, tasks, asked.sample)
        if len(tasks) * asked.n > offer.most:
            raise UsageError(f"{len(tasks) * asked.n} attempts are more than one request may be of", field="n",
                             remedy=f"Ask for {offer.most} at the most.")
        request = Request(
            run=new_run_id(), project=offer.project, key=key, digest=digest, endpoint=label, version=version,
            on_stale=asked.on_stale, max_staleness=asked.max_staleness, created_at=now())
        run = shared.submit(home, spec, tasks, priority=asked.priority, pool=offer.pool, request=request,
                            project=offer.project, key=None if key is None else _submission_key(key))
    if run.id != request.run:  # the same request came twice at once
        return _again(home, _known(home, run.id, offer.project), digest)
    return _made(home, run.id, created=True, notes=[offer.public(note) for note in notes])


def _policy(home: Home, offer: Offer, asked: Asked) -> tuple[str | None, int | str | None]:
    """What its endpoint is called, and the version of its policy: what was said, or what is current."""
    if asked.endpoint is None and not offer.endpoints:
        return None, asked.policy_version
    label, _ = offer.endpoint(asked.endpoint)
    current = home.store.rollouts.policy(offer.project, label)
    return label, asked.policy_version if current is None or asked.policy_version is not None else current.version


def _digest(asked: Asked) -> str:
    """Of what was asked, but for the key: whatever stands at its default is the same as not said.

    So a version that has more to ask for still knows what an older one was asked.
    """
    said = asked.model_dump(mode="json", exclude_defaults=True, exclude={"idempotency_key"})
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _submission_key(key: str) -> str:
    """Keys of requests are apart from those of other runs, whatever their length."""
    return _NAMESPACE + hashlib.sha256(key.encode()).hexdigest()


def _again(home: Home, earlier: Request, digest: str) -> Made:
    if earlier.digest != digest:
        raise Conflict(f"this key was given with another request, {earlier.run}", field="idempotency_key",
                       remedy="Take a new key for a new request.")
    return _made(home, earlier.run, created=False)


def _made(home: Home, run_id: str, *, created: bool, notes: Iterable[str] = ()) -> Made:
    ids = tuple(attempt for attempt, _, _ in home.store.rollouts.standing(run_id))
    return Made(id=run_id, attempts=ids, created=created, notes=tuple(notes))


@contextmanager
def _without_places(offer: Offer) -> Iterator[None]:
    """What is told of anything wrong names no place of this machine."""
    try:
        yield
    except UsageError as error:
        where = None if error.file is None else offer.public(str(error.file))
        remedy = None if error.remedy is None else offer.public(error.remedy)
        raise type(error)(offer.public(error.message), file=where, field=error.field, remedy=remedy) from None


# -- looking -----------------------------------------------------------------------------------------------------------


def told(home: Home, run_id: str, *, project: str = DEFAULT) -> RequestWhole:
    """A request as it stands, with each attempt. Raises Missing."""
    request = _known(home, run_id, project)
    run, counted = home.store.run(run_id), home.store.rollouts.counts([run_id])[run_id]
    attempts = home.store.attempts(run_id)
    rollouts = attempts_told(home, attempts)
    whole = _told(request, run, counted, policies(home, project))
    over = run.state in (RunState.FINISHED, RunState.CANCELLED)
    found = selection.warnings(selection.selected(home, run, attempts)) if over else ()
    return RequestWhole(**whole.model_dump(), valid=sum(one.valid is True for one in rollouts), rollouts=rollouts,
                        warnings=tuple(found))


def listing(home: Home, most: int = PAGE, before: str | None = None, *, project: str = DEFAULT) -> Requested:
    """The newest requests; those before one that is named. Raises Missing."""
    if before is not None:
        _known(home, before, project)
    found = home.store.rollouts.listing(project, most, before)
    counted, current = home.store.rollouts.counts([one.run for one in found]), policies(home, project)
    shown = tuple(_told(one, home.store.run(one.run), counted[one.run], current) for one in found)
    return Requested(requests=shown, before=shown[-1].id if len(shown) == most else None)


def attempts_told(home: Home, attempts: Iterable[Attempt]) -> tuple[AttemptTold, ...]:
    """Each attempt as it stands."""
    found = list(attempts)
    running = {one.id: one.executions for one in found if one.state is AttemptState.RUNNING}
    through = home.store.rollouts.stages(running) if running else {}
    return tuple(_attempt(one, _AFTER.get(through.get(one.id, ""))) for one in found)


def _attempt(attempt: Attempt, at: str | None) -> AttemptTold:
    shown = {"attempt": attempt.id, "task": attempt.task, "agent": attempt.agent, "index": attempt.index,
             "state": attempt.state.value, "executions": attempt.executions}
    outcome = attempt.outcome
    if outcome is None:
        return AttemptTold(**shown, stage=at if attempt.state is AttemptState.RUNNING else None)
    verdict = outcome.verdict
    shown |= {"cause": verdict.cause, "stop": outcome.stop.value,
              "stage": outcome.broke.stage if outcome.broke is not None else None}
    if isinstance(verdict, Valid):
        shown |= {"valid": True, "reward": verdict.total, "rewards": verdict.rewards, "passed": verdict.passed}
    return AttemptTold(**{"valid": False, **shown})


def _told(request: Request, run: Run, counted: Counted, current: dict[str, Policy]) -> RequestTold:
    return RequestTold(
        id=request.run, state=run.state.value, reason=run.reason, agent=run.spec.agents[0].name,
        endpoint=request.endpoint, policy_version=request.version, behind=behind(request, current),
        max_staleness=request.max_staleness, stale=request.stale_at is not None, created_at=request.created_at,
        attempts=counted.attempts, done=counted.done, groups=counted.groups)


def policies(home: Home, project: str = DEFAULT) -> dict[str, Policy]:
    """The current policy of each endpoint for which one was announced."""
    return {one.endpoint: one for one in home.store.rollouts.policies(project)}


def behind(request: Request, current: dict[str, Policy]) -> int | None:
    """How many versions the request's policy is older than the current one; None where that is not known."""
    policy = current.get(request.endpoint or "")
    return None if policy is None or request.rank is None else max(0, policy.rank - request.rank)


def _known(home: Home, run_id: str, project: str) -> Request:
    found = home.store.rollouts.request(run_id)
    if found is None or found.project != project:
        raise Missing(f"no request {run_id!r}", field="id", remedy="GET /v1/rollouts lists them.")
    return found


# -- steering ----------------------------------------------------------------------------------------------------------


def cancel(home: Home, run_id: str, *, project: str = DEFAULT) -> RequestWhole:
    """The request, cancelled: what runs is stopped, and gets no result. One that is over stays as it is.

    Groups that are complete by then are still handed out. Raises Missing.
    """
    _known(home, run_id, project)
    if home.store.run(run_id).state not in (RunState.FINISHED, RunState.CANCELLED):
        shared.turn(home, run_id, SubmissionState.CANCELLED, "whoever asked for it cancelled it")
    return told(home, run_id, project=project)


def reopen(home: Home, run_id: str, *, project: str = DEFAULT) -> RequestWhole:
    """A request that was paused (its reason says why), open again. Raises Missing, Conflict where it is over."""
    _known(home, run_id, project)
    state = home.store.run(run_id).state
    if state in (RunState.FINISHED, RunState.CANCELLED):
        raise Conflict(f"{run_id} is {state.value}", field="id", remedy="Ask anew.")
    shared.turn(home, run_id, SubmissionState.OPEN)
    return told(home, run_id, project=project)


def announce(home: Home, offer: Offer, endpoint: str, announced: Announced) -> PolicyTold:
    """This version is the current one of the endpoint's policy. What is too old by that is stale.

    Raises Missing for an endpoint that is not offered, Conflict for a version that is no later one.
    """
    policy, stale = home.store.rollouts.announce(
        offer.project, offer.known(endpoint), announced.version, back=announced.back)
    tend(home)
    return PolicyTold(endpoint=policy.endpoint, version=policy.version, stale=tuple(stale))


def policy(home: Home, offer: Offer, endpoint: str) -> PolicyTold:
    """The current policy of an endpoint. Raises Missing where none was announced."""
    found = home.store.rollouts.policy(offer.project, offer.known(endpoint))
    if found is None:
        raise Missing(f"no policy of {endpoint!r} was announced", field="endpoint",
                      remedy="Say: PUT /v1/policies/ENDPOINT")
    return PolicyTold(endpoint=found.endpoint, version=found.version)


def tend(home: Home) -> None:
    """What comes by itself: stale requests are called off where they want it, and those whose time is over end.

    Idempotent, and several may do it at once. Raises StoreFault.
    """
    for run_id in home.store.rollouts.to_cancel():
        _turned(home, run_id, SubmissionState.CANCELLED, "its policy is stale")
    home.store.queue.overdue()
    for run_id in home.store.rollouts.overdue():
        _expire(home, home.store.run(run_id))
    home.store.rollouts.close_over()


def _expire(home: Home, run: Run) -> None:
    """Attempts of a request whose time is over end without a result, so that its groups are complete with the others.

    What a worker still has is called off by now, and ends here a little later.
    """
    detail = f"the request's time of {run.spec.deadlines.run_s or 0:g} s was over"
    for attempt in home.store.rollouts.loose(run.id):
        number = home.store.begin_execution(attempt, "rollouts")
        if number is not None:
            log, verdict = EventLog(home.store, attempt, number), Invalid(cause=Cause.CANCELLED, detail=detail)
            log.emit(EventKind.VERDICT, verdict.to_json())
            log.finish(Outcome(verdict=verdict, stop=StopReason.CANCELLED))
        home.store.queue.done(attempt)
    if not home.store.queue.left(run.id):
        _turned(home, run.id, SubmissionState.CLOSED, detail)


def _turned(home: Home, run_id: str, state: SubmissionState, reason: str) -> None:
    try:
        home.store.queue.turn(run_id, state, reason)
    except UsageError:  # it was over in between
        return
