"""Ears: an attempt at work here hears what is sent to it, between two of its turns.

Nobody asks the database at every turn. Workers learn with each beat, and who works alone by a look a second, which of
their attempts have something to hear; apart from that an execution looks once where its agent begins, and once where it
says that it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

from woodshed.errors import StoreFault
from woodshed.interfaces import Hear, Said
from woodshed.model.sent import MessageKind
from woodshed.store.eventlog import EventLog
from woodshed.store.messages import Messages

LOOK_S = 1.0
"""So often who works alone looks for messages; a worker does with its beats."""


class Ears:
    """Of one process: which of its attempts have something to hear, as far as it knows."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._spoken_to: set[str] = set()

    def wake(self, attempts: Iterable[str]) -> None:
        """These have something to hear. From any thread."""
        self._spoken_to.update(attempts)

    def of(self, log: EventLog, known: Iterable[int] = ()) -> Hear:
        """How an execution hears; messages that are ``known`` stand in the record that it goes on with."""
        return _Ear(self._messages, self._spoken_to, log, set(known)).hear

    async def listen(self, run: str) -> None:
        """Look again and again for what is sent to a run that this process works on alone."""
        while True:
            with suppress(StoreFault):  # the next look is soon
                self.wake(await asyncio.to_thread(self._messages.waiting, run))
            await asyncio.sleep(LOOK_S)


class _Ear:
    """Of one execution. What it passed on it passes on once, whether or not that is written yet."""

    def __init__(self, messages: Messages, spoken_to: set[str], log: EventLog, known: set[int]) -> None:
        self._messages, self._spoken_to, self._log, self._known = messages, spoken_to, log, known
        self._first = True

    async def hear(self, turn: int, finished: bool) -> Sequence[Said]:
        """See :data:`woodshed.interfaces.Hear`."""
        attempt = self._log.attempt
        if not (self._first or finished or attempt in self._spoken_to):
            return ()
        self._spoken_to.discard(attempt)
        try:
            return await asyncio.to_thread(self._look)
        except StoreFault:  # nothing is lost: it is looked at again
            self._spoken_to.add(attempt)
            return ()
        finally:
            self._first = False

    def _look(self) -> Sequence[Said]:
        if self._first:
            self._log.flush()  # so that who asks how the attempt stands learns that its agent has begun
        found = [message for message in self._messages.unheard(
            self._log.attempt, self._log.execution, MessageKind.SAY) if message.number not in self._known]
        self._known.update(message.number for message in found)
        return [Said(message.number, str(message.data["text"])) for message in found]
