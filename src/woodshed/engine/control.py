"""Control: the whole interface of the engine, on one page. Who works is :class:`woodshed.engine.durable.Durable`.

=========  ===========================================================================================
submit     a run, planned and offered to workers; again with the same key, the same run
cancel     nothing more of it is handed out, and what runs is stopped
pause      nothing more of it is handed out, and what runs goes on to its end
resume     it is handed out again
send       a message to attempts, wherever they run; each hears it once in its conversation
status     how a run or an attempt stands
schedule   runs that begin by themselves
workers    the processes that take attempts
recover    what the dead had is free again, for others to go on with
=========  ===========================================================================================

Each is a change of our own tables, or a look at them, and may be done from any process that reaches the database:
workers heed it with their next claim or beat, and a process that works on a run alone (``woodshed run``) looks at its
row. Rows of DBOS hold the ids of executions and whether they ended; nothing
is read from there, so a run that one version began another one steers.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from woodshed.engine.lease import owner
from woodshed.errors import UsageError
from woodshed.model import Attempt, Run, RunState
from woodshed.model.schedule import Schedule, Trace
from woodshed.model.sent import MessageKind, SentMessage
from woodshed.model.status import AttemptStatus, RunStatus
from woodshed.store import Store
from woodshed.store.queue import Reaped, Submission, SubmissionState, Worker
from woodshed.store.rollouts import Request


class Control:
    """See the module. Every method is synchronous, short and one transaction, and raises StoreFault like the store."""

    def __init__(self, store: Store) -> None:
        self._store, self._queue = store, store.queue

    def submit(
        self, run: Run, planned: Sequence[Attempt], submission: Submission, endpoints: Mapping[str, str],
        request: Request | None = None,
    ) -> str:
        """The id of the run that holds the submission's key: this one, recorded and offered, or an earlier one.

        ``request`` is that for rollouts which it is of, where it is of one.
        """
        return self._store.create_shared(run, planned, submission, endpoints, request)

    def cancel(self, run_id: str, reason: str | None = None) -> None:
        """What runs is stopped within seconds, with its evidence kept. Raises UsageError where the run is over."""
        if self._shared(run_id):
            self._queue.turn(run_id, SubmissionState.CANCELLED, reason)
        else:
            self._store.alone.mark(run_id, RunState.CANCELLED, reason)

    def pause(self, run_id: str, reason: str | None = None) -> None:
        """What runs goes on to its end, or to its next turn where it is fine. Raises UsageError where it is over."""
        if self._shared(run_id):
            self._queue.turn(run_id, SubmissionState.PAUSED, reason)
        else:
            self._store.alone.mark(run_id, RunState.PAUSED, reason)

    def resume(self, run_id: str) -> None:
        """Workers take it again; its deadline counts anew. Raises UsageError where it is over, or not theirs."""
        if not self._shared(run_id):
            raise UsageError(f"{run_id} is not handed out to workers", field="run",
                             remedy=f"Go on with it in a process: woodshed run --resume {run_id}")
        self._queue.turn(run_id, SubmissionState.OPEN)

    def _shared(self, run_id: str) -> bool:
        return self._queue.submission(run_id) is not None

    def send(
        self, to: Sequence[str], kind: MessageKind, data: Mapping[str, Any], key: str | None = None
    ) -> list[SentMessage]:
        """As :meth:`woodshed.store.messages.Messages.send`."""
        return self._store.messages.send(to, kind, data, key)

    def status(self, name: str) -> RunStatus | AttemptStatus:
        """Of the run or the attempt with this id, as the store tells it. Raises UsageError where there is none."""
        return self._store.status.of_attempt(name) if "." in name else self._store.status.of_run(name)

    def schedule(self, schedule: Schedule, known: Sequence[Trace] = ()) -> None:
        """As :meth:`woodshed.store.schedules.Schedules.add`."""
        self._store.schedules.add(schedule, known)

    def workers(self) -> list[Worker]:
        """Those that live, and those that were found dead; oldest first."""
        return self._queue.workers()

    def recover(self, home: Path, *, silent_s: float | None, without: str = "") -> list[Reaped]:
        """Free what the dead had: who was silent for ``silent_s``, and who lived in ``home`` and does no more.

        The latter is known at once, by a lock. None: nothing is to be concluded from silence. ``without`` asks.
        """
        found = self._queue.reap(silent_s) if silent_s is not None else []
        for worker in self.workers():
            here = worker.executor != without and worker.state != "gone" and worker.host == platform.node()
            if here and owner(home, worker.executor) is None:
                one = self._queue.reap_one(worker.executor)
                found += [one] if one is not None else []
        return found
