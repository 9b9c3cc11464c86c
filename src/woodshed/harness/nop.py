"""nop: does nothing. What passes with it was never a task."""

from __future__ import annotations

from woodshed.harness.argument import no_argument
from woodshed.interfaces import Acting
from woodshed.model import EventKind, StopReason


class Nop:
    """A harness that leaves the sandbox as it found it."""

    needs_model = False
    resumable = True

    def __init__(self, argument: str | None = None) -> None:
        no_argument("nop", argument)

    async def act(self, acting: Acting) -> StopReason:
        """FINISHED, at once."""
        acting.emit(EventKind.NOTE, {"text": "nop: nothing was done"})
        return StopReason.FINISHED
