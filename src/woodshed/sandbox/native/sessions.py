"""A shell of a box that stays: what one command sets, the next one finds."""

from __future__ import annotations

from collections.abc import Mapping

from woodshed.errors import Unsupported
from woodshed.interfaces import Session
from woodshed.sandbox.native.commands import Commands


class Sessions:
    """Opens shells that stay."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: int = 0
    ) -> Session:
        """A shell that stays."""
        raise Unsupported("session: not built yet")
