"""The events of an attempt, whole: those of earlier executions included, where the newest one went on with them."""

from __future__ import annotations

from woodshed.measure.resume import begun, joined
from woodshed.model import Attempt, Event
from woodshed.services.home import Home


def history(home: Home, attempt: Attempt) -> list[Event]:
    """What the attempt's newest execution tells, as though it had been the only one. Raises StoreFault."""
    events = home.store.events(attempt.id, attempt.executions)
    if begun(events) is None:
        return events
    return joined(home.store.events(attempt.id), attempt.executions)
