"""Durable execution of attempts. The whole interface is :class:`Control`; who works in a process is :class:`Durable`.

Example::

    with Lease(home) as lease, Store(None, home) as store:
        run = claim(store, "last", lease, home)           # to resume; a new run has executor=lease.executor
        durable = Durable(home, lease.executor, execute, concurrency=run.spec.concurrency)
        await durable.start()
        try:
            await durable.submit(run.id, [attempt.id for attempt in store.attempts(run.id) if not attempt.outcome])
            faults = await durable.wait()                 # attempt id -> what its execute raised; those stay open
        finally:
            await durable.close()                         # cancels what is still running
"""

from woodshed.engine.control import Control
from woodshed.engine.durable import Durable
from woodshed.engine.lease import Lease, Owner, claim, owner

__all__ = ["Control", "Durable", "Lease", "Owner", "claim", "owner"]
