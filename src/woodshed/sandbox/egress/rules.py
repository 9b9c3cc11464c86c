"""A NetworkPolicy compiled: which rule governs a name and port. The longest host that matches decides, alone.

So a wide rule opens no second way to a host that a narrow one binds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from woodshed.model.network import HostRule, NetworkPolicy

_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
"""What ends so is read as an IPv4 address by resolvers and proxies, whatever else it is (URL Standard, section 3.5)."""


@dataclass(slots=True, eq=False)
class Grant:
    """A rule, and what it has let pass in bytes: over the life of one sandbox, all its connections together."""

    rule: HostRule
    sent: int = 0
    received: int = 0


class Rules:
    """Answers for names in lower case without a final dot. Of one sandbox: its grants count."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self._exact: dict[str, list[Grant]] = {}
        self._below: dict[str, list[Grant]] = {}
        for rule in policy.rules:
            wild = rule.host.startswith("*")
            where, name = (self._below, rule.host[2:]) if wild else (self._exact, rule.host)
            where.setdefault(name, []).append(Grant(rule))

    def find(self, name: str, port: int) -> Grant | None:
        """What lets ``name`` be reached on ``port``; None where there is none."""
        return next((grant for grant in self._matching(name) if port in grant.rule.ports), None)

    def knows(self, name: str) -> bool:
        """Whether any port of ``name`` may be reached."""
        return bool(self._matching(name))

    def _matching(self, name: str) -> Sequence[Grant]:
        """Those for exactly ``name``, else for the longest name above it, else for all names."""
        if name in self._exact:
            return self._exact[name]
        above = "" if _NUMBER.fullmatch(name) else name
        while above:
            above = above.partition(".")[2]
            if above in self._below:
                return self._below[above]
        return ()
