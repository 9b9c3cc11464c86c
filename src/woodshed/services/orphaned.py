"""Orphaned: acted attempts whose process died. Nobody can go on with them, so each has its result: broken, by no agent.

Whoever acted spoke to a sandbox that is gone. What was recorded of it stays, in the execution that was lost.
"""

from __future__ import annotations

from woodshed.engine.lease import of_this_home, owner
from woodshed.errors import Cause, EnvironmentFault
from woodshed.harness.outside import NAME
from woodshed.model import AttemptState, EventKind, Invalid, Outcome, Run, RunState, StopReason
from woodshed.model.retry import Broken
from woodshed.services.home import Home
from woodshed.store.eventlog import EventLog

DETAIL = "the process that held its sandbox died while it was acted"


def end(home: Home) -> list[str]:
    """Ids of the runs that are over by this call. Idempotent, and several may do it at once. Raises StoreFault.

    Of this home alone: of a process that lives in another nobody here knows whether it is dead.
    """
    found = [run for run in home.store.runs(unfinished=True) if _orphaned(home, run)]
    for run in found:
        for attempt in home.store.attempts(run.id):
            if attempt.state is not AttemptState.DONE:
                _end(home, attempt.id, run.executor or "")
        home.store.set_run_state(run.id, RunState.FINISHED)
    return [run.id for run in found]


def _orphaned(home: Home, run: Run) -> bool:
    acted = all(agent.harness == NAME for agent in run.spec.agents)
    return acted and run.executor is not None and of_this_home(home.path, run.executor) \
        and owner(home.path, run.executor) is None


def _end(home: Home, attempt: str, executor: str) -> None:
    number = home.store.begin_execution(attempt, executor)
    if number is None:
        return
    log, verdict = EventLog(home.store, attempt, number), Invalid(cause=Cause.ENVIRONMENT, detail=DETAIL)
    log.emit(EventKind.ERROR, {"cause": verdict.cause.value, "type": EnvironmentFault.__name__, "message": DETAIL,
                               "retryable": False})
    log.emit(EventKind.VERDICT, verdict.to_json())
    log.finish(Outcome(verdict=verdict, stop=StopReason.ERROR, broke=Broken(cause=verdict.cause, stage=None)))
