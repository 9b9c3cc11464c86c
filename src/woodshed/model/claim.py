"""What an agent says of its own work at the end: a claim of success, an admission of failure, or nothing. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from woodshed.model.attempt import StopReason
from woodshed.model.trajectory import Trajectory

_LOOKED_AT = 10_000  # characters of a message that a pattern is tried on: the text is hostile
_ADMITS = re.compile(
    r"\bI (?:could ?n[o']t|was (?:not|unable)|am (?:not able|unable)|ca(?:n't|nnot|n not)|did ?n[o']t manage|gave up)\b"
    r"|\bI failed to\b"
    r"|\bunable to (?:fix|solve|complete|finish|make|find|get)\b"
    r"|\b(?:tests?|it|they|this|checks?) (?:are |is )?(?:still )?(?:fails?|failing|broken)\b"
    r"|\bstill (?:fails?|failing|broken)\b|\btests? (?:do|does|are|is) not pass"
    r"|\b(?:is|are|was|remains?) (?:not (?:yet )?(?:fixed|solved|working|complete|finished|done)|unsolved)\b"
    r"|\b(?:is|are|remains?) incomplete\b",
    re.IGNORECASE)


def admits(said: str, patterns: Iterable[str] = ()) -> bool:
    """True where ``said`` admits a failure; ``patterns`` are further words that do, as regular expressions."""
    text = said[:_LOOKED_AT]
    return bool(_ADMITS.search(text)) or any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


def claim(trajectory: Trajectory, stop: StopReason | None) -> str | None:
    """The agent's last word on its work: what it gave ``finish``, else its last message; None where there is neither.

    A claim is made: who is cut off has not come to it, and who ends without a word (as a script that acts) makes none.
    Calling ``finish`` claims to be done, with a summary or without.
    """
    own = [step for step in trajectory.steps if step.parent is None]  # what a helper says, it says to its parent
    for step in reversed(own):
        for call in step.tool_calls:
            if call.name == "finish" and call.error is None:
                return f"{call.arguments.get('summary', '')}\n{step.message}"
    if stop is not StopReason.FINISHED:
        return None
    said = next((step.message for step in reversed(own) if step.source == "agent"), "")
    return said if said.strip() else None


def unclaimed(stop: StopReason | None) -> str:
    """Why there is no claim, of an attempt that has none."""
    return "it ended without a word" if stop is StopReason.FINISHED else "it was cut off before it claimed anything"
