"""Which limits were reached while a command ran: what was counted before it began is left out."""

from __future__ import annotations

from collections.abc import Iterable

from woodshed.sandbox.native.cgroups import Groups


class Tally:
    """Begun before a command, read once when it has ended. Commands that ran beside it are not told apart."""

    __slots__ = ("_groups", "_kills", "_refused")

    def __init__(self, groups: Groups) -> None:
        self._groups, self._kills, self._refused = groups, groups.oom_kills(), groups.pids_refused()

    def hits(self, told: Iterable[str], *, cut: bool) -> tuple[str, ...]:
        """Fields of ``Limits``: those ``told`` with the command's end, those that cgroups counted, and the output's.

        ``cut``: its output was longer than ``Limits.output_bytes``.
        """
        hits = list(told)
        if self._groups.oom_kills() > self._kills:
            hits.append("memory_mb")
        if self._groups.pids_refused() > self._refused:
            hits.append("pids")
        if cut:
            hits.append("output_bytes")
        return tuple(dict.fromkeys(hits))
