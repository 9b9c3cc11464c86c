"""Both streams of one command: kept in bounds, told to the caller as they come, spooled where they are long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from woodshed.interfaces import Spool, Stream
from woodshed.sandbox.native.output import Kept, Take, Told
from woodshed.sandbox.native.spool import Spooling, Spools

_LEAST_KEPT = 2


class Collected:
    """``out`` and ``err`` take the pieces; afterwards this is what a result says of them."""

    def __init__(self, limit: int, stream: Stream | None, spools: Spools) -> None:
        self.limit = limit = max(_LEAST_KEPT, limit)
        self.stdout, self.stderr = Kept(limit), Kept(limit)
        self._told = Told(stream) if stream is not None else None
        self._spooling: tuple[Spooling, ...] = ()
        if spools.each:
            self._spooling = Spooling(spools, self.stdout), Spooling(spools, self.stderr)
        if self._told is None and not self._spooling:
            self.out: Take = self.stdout.add
            self.err: Take = self.stderr.add
        else:
            self.out, self.err = self._taker(0, self.stdout, "stdout"), self._taker(1, self.stderr, "stderr")

    def _taker(self, index: int, kept: Kept, name: Literal["stdout", "stderr"]) -> Take:
        takes: list[Take] = [self._spooling[index].add] if self._spooling else []
        takes.append(kept.add)
        if self._told is not None:
            takes.append(self._told.taker(name))
        return _to_each(takes)

    @property
    def truncated(self) -> bool:
        """Whether something of either stream was dropped."""
        return self.stdout.truncated or self.stderr.truncated

    @property
    def spool(self) -> Spool | None:
        """Where more of it is than was kept."""
        if not any(spooling.path or not spooling.complete for spooling in self._spooling):
            return None
        paths: list[Path | None] = [spooling.path for spooling in self._spooling]
        return Spool(paths[0], paths[1], complete=all(spooling.complete for spooling in self._spooling))

    def raise_error(self) -> None:
        """Raise what the caller's ``stream`` raised, if it did."""
        if self._told is not None and self._told.error is not None:
            raise self._told.error

    def close(self) -> None:
        """Nothing more is spooled. Idempotent."""
        for spooling in self._spooling:
            spooling.close()


def _to_each(takes: Sequence[Take]) -> Take:
    def take(data: bytes) -> None:
        for one in takes:
            one(data)

    return take
