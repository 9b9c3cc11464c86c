"""Sessions: what the portal remembers between two requests of one browser."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Session:
    """``user_id`` is None for a visitor who has not logged in. ``data`` holds the basket and the like."""

    id: str
    user_id: int | None = None
    data: dict[str, Any] = field(default_factory=dict)


class Sessions:
    """The sessions that are alive, by the id in the browser's cookie."""

    def __init__(self) -> None:
        self._alive: dict[str, Session] = {}

    def open(self) -> Session:
        """A new session for a visitor."""
        session = Session(secrets.token_urlsafe(32))
        self._alive[session.id] = session
        return session

    def find(self, session_id: str | None) -> Session | None:
        """The session with this id, if it is alive."""
        return self._alive.get(session_id) if session_id else None

    def close(self, session_id: str) -> None:
        """Forget the session; unknown ids are fine."""
        self._alive.pop(session_id, None)
