"""Rules of exports as data: which steps and which pairs deserve to be learnt from. All stand in the data card."""

from __future__ import annotations

from fnmatch import fnmatchcase

from pydantic import Field

from woodshed.model import Record, Valid

_FLAGS = ("tamper:*", "weakens_tests", "lookalike_path")


class SftRules(Record):
    """Which answers are examples. Attempts that are not valid never are.

    ``passed`` wants the whole work done; ``min_total`` a total of at least that, too. An attempt with a flag that one
    of ``without_flags`` (patterns) fits gives none. Of the rest, answers are left out that are ``malformed`` (a call
    that could not be read), ``cut`` (they ran into a token limit), ``empty``, or ``redone``: every call of it failed,
    and the next answer made one so alike (0 to 1, of its arguments; above 1 keeps them) that did not. At most ``most``
    attempts of a task give any, so that easy ones do not outweigh the rest; None: all.
    """

    passed: bool = True
    min_total: float | None = None
    without_flags: tuple[str, ...] = _FLAGS
    malformed: bool = True
    cut: bool = True
    empty: bool = True
    redone: float = Field(default=0.7, ge=0)
    most: int | None = Field(default=None, gt=0)
    subtasks: bool = Field(default=True, description="answers of delegated conversations are examples, too")


class PreferenceRules(Record):
    """Which two attempts of a task by one agent make a pair. Attempts that are not valid never do; ties are dropped.

    With ``any_agent`` two agents' do, too; an attempt that goes on from another's step is compared with it in any case.

    The totals differ by more than ``margin``, or they tie and people rated both, and by at least ``stars`` apart. A
    pair whose ratings contradict its totals is dropped. The better one has no flag that fits ``without_flags``. At most
    ``most`` pairs of a task, those that differ most first. ``step`` takes only the answers in which the two part, not
    all that followed.
    """

    margin: float = Field(default=0.0, ge=0)
    ratings: bool = True
    stars: float = Field(default=1.0, gt=0)
    without_flags: tuple[str, ...] = _FLAGS
    most: int = Field(default=8, gt=0)
    step: bool = False
    any_agent: bool = False


class ExportRules(Record):
    """What a rules file may hold: tables ``[sft]`` and ``[preference]``."""

    sft: SftRules = SftRules()
    preference: PreferenceRules = PreferenceRules()


def flagged(verdict: Valid, patterns: tuple[str, ...]) -> bool:
    """Whether a flag of it fits one of the patterns."""
    return any(fnmatchcase(flag, pattern) for flag in verdict.flags for pattern in patterns)
