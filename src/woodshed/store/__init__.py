"""Tables, migrations, event log, blobs: where every fact of a run lives.

Example::

    store = Store(None, home)                      # SQLite in the home; or Store("postgresql://…", home)
    blobs = Blobs(home / "blobs")
    run = Run(id=new_run_id(), spec=spec, executor=lease.executor, created_at=now())
    store.create_run(run, [Attempt(id=attempt_id(run.id, n), run=run.id, …) for n, … in enumerate(…, 1)])

    async def execute(attempt: str) -> None:       # what engine.Durable calls for each attempt
        execution = store.begin_execution(attempt, lease.executor)
        if execution is None:
            return                                 # it is done already
        log = EventLog(store, attempt, execution)
        outcome = await run_attempt(task, agent, Parts(…, emit=log.emit, blobs=blobs), seed=seed)
        log.finish(outcome)                        # events and result in one transaction; False when fenced
"""

from woodshed.store.blobs import Blobs
from woodshed.store.eventlog import EventLog
from woodshed.store.ids import attempt_id, new_run_id, run_of
from woodshed.store.records import Execution, ExecutionState, Store

__all__ = ["Blobs", "EventLog", "Execution", "ExecutionState", "Store", "attempt_id", "new_run_id", "run_of"]
