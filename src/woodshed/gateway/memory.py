"""What later requests may go on from: conversations of one attempt by the id of the answer that ended each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from woodshed.gateway.dialects import Refused
from woodshed.gateway.estimate import weigh
from woodshed.model import Message

MOST, MOST_CHARACTERS = 256, 32_000_000


class Memory:
    """The newest, within ``MOST`` and ``MOST_CHARACTERS`` in all; older ones are forgotten first."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[tuple[Message, ...], int]] = OrderedDict()
        self._characters = 0

    def keep(self, ident: str, conversation: Sequence[Message]) -> None:
        """Remember what the answer ``ident`` ended. The same once more changes nothing."""
        if ident in self._known:
            return
        characters = weigh(conversation)
        self._known[ident] = (tuple(conversation), characters)
        self._characters += characters
        while len(self._known) > MOST or self._characters > MOST_CHARACTERS:
            _, (_, gone) = self._known.popitem(last=False)
            self._characters -= gone

    def find(self, ident: str) -> tuple[Message, ...]:
        """The conversation up to and with this answer. Raises Refused."""
        if ident not in self._known:
            shown = ident if ident.isascii() and ident.isprintable() and len(ident) <= 200 else "so named"
            raise Refused(f"Previous response {shown} not found: it is another attempt's, or was forgotten. Send the "
                          "conversation itself as input.", "previous_response_id",
                          code="previous_response_not_found")
        return self._known[ident][0]
