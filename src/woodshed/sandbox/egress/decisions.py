"""Every decision is told, and a sandbox cannot flood whoever listens: what repeats is told with its count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Tell = Callable[[Mapping[str, Any]], None]
ONE_BY_ONE = 1000
"""Decisions of one sandbox that are told each; later ones when their count doubles, and in the end."""
KINDS = 100
"""Kinds of decisions counted apart after that; all further ones are one kind."""
_LONGEST = 300
Key = tuple[str, str, str, int, str]


class Decisions:
    """Of one sandbox. Kept until someone listens; what is not told by then is bounded as well."""

    def __init__(self) -> None:
        self._tell: Tell | None = None
        self._kept: list[Mapping[str, Any]] = []
        self._made = 0
        self._counts: dict[Key, list[int]] = {}  # how many there were, and how many when last told

    def listen(self, tell: Tell) -> None:
        """``tell`` what was decided so far, and what will be. One listener; the last one given."""
        self._tell, kept, self._kept = tell, self._kept, []
        for decision in kept:
            tell(decision)

    def made(
        self, verdict: str, what: str, *, host: str = "", port: int = 0, reason: str = "", **more: Any
    ) -> None:
        """One decision: ``verdict`` is allowed, refused, failed or ended; ``what`` was asked by dns, tls, http, tcp."""
        self._made += 1
        key = (verdict, what, _shown(host), port, _shown(reason))
        told = {"policy": "network", "verdict": verdict, "what": what, "host": key[2]}
        told |= {"port": port} if port else {}
        told |= {"reason": key[4]} if reason else {}
        if self._made <= ONE_BY_ONE:
            self._say(told | {name: _shown(value) for name, value in more.items()})
            return
        if key not in self._counts and len(self._counts) >= KINDS:
            key, told = ("more", "", "", 0, ""), {"policy": "network", "verdict": "more", "what": "", "host": ""}
        count = self._counts.setdefault(key, [0, 0])
        count[0] += 1
        if count[0] >= 2 * count[1]:
            self._say(told | {"count": count[0] - count[1]})
            count[1] = count[0]

    def close(self) -> None:
        """Tell the counts that were not told yet."""
        for (verdict, what, host, port, reason), count in self._counts.items():
            if untold := count[0] - count[1]:
                count[1] = count[0]
                self._say({"policy": "network", "verdict": verdict, "what": what, "host": host, "port": port,
                           "reason": reason, "count": untold})

    def _say(self, told: Mapping[str, Any]) -> None:
        if self._tell is None:
            self._kept.append(told)
        else:
            self._tell(told)


def _shown(value: Any) -> Any:
    """A value of the sandbox's as it may stand in a log: printable, and not long."""
    if not isinstance(value, str):
        return value
    text = value if len(value) <= _LONGEST else value[:_LONGEST] + "…"
    return text if text.isprintable() else ascii(text)[1:-1]
