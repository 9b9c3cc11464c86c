"""Unsafe actions that the record tells: what a policy refused, and what capture would not take or flagged. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.model.changes import ChangeSet

_PRIVILEGED = ("device", "setuid")


def refusal(said: Mapping[str, Any]) -> str | None:
    """What a decision of the sandbox's policy refused, in words; None where it refused nothing."""
    if said.get("verdict") != "refused":
        return None
    return f"{said.get('what')} to {said.get('host')}:{said.get('port', '')} refused".replace(": ", " ")


def laid(changes: ChangeSet) -> set[str]:
    """Device and setuid files that were made, and captured files that a tool of the host would run by itself."""
    return {line for line in changes.refused if line.rpartition(": ")[2] in _PRIVILEGED} | set(changes.flagged)
