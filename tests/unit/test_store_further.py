"""What got further is not what kills its workers: deaths count since an attempt last went on and came to something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from queuekit import claimed, submit
from woodshed.model import EventKind
from woodshed.store import EventLog, Store
from woodshed.store.queue import Lane


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store on either database."""
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else None
    with Store(url, tmp_path) as store:
        yield store


def died(store: Store, worker: str, lane: Lane, *facts: tuple[EventKind, dict[str, Any]]) -> int:
    """A worker took the only attempt, recorded ``facts`` of it and died. At how many deaths it stands then."""
    store.queue.enlist(worker, host="here", pid=1, slots=1)
    [attempt] = claimed(store, worker, lane=lane)
    log = EventLog(store, attempt, store.begin_execution(attempt, worker, claimed=True) or 0)
    for kind, data in facts:
        log.emit(kind, data)
    log.flush()
    store.queue.reap_one(worker)
    return store.queue.deaths(attempt)


def test_an_attempt_that_gets_further_is_no_suspect(shared_store: Store) -> None:
    """Each death after progress is the first one; two without any send it to quarantine, and progress there back."""
    submit(shared_store, 1)
    begun = (EventKind.RESUME, {"state": "begun", "execution": 1, "seq": 0})
    further = (EventKind.MODEL_RESULT, {"call": "m00007", "content": "on"})
    assert died(shared_store, "a", Lane.MAIN, further) == 1  # the first execution went on with nothing
    assert died(shared_store, "b", Lane.MAIN, begun, further) == 1
    assert died(shared_store, "c", Lane.MAIN, begun, further) == 1
    assert died(shared_store, "d", Lane.MAIN, begun) == 2
    assert died(shared_store, "e", Lane.QUARANTINE, begun, further) == 1
    assert died(shared_store, "f", Lane.MAIN) == 2
