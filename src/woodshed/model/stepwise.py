"""The verdict upon a task of several steps, from the verdicts upon its steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from woodshed.errors import Cause
from woodshed.model.record import Record
from woodshed.model.task import Task
from woodshed.model.verdict import Assurance, Valid

_WEAKEST_FIRST = (Assurance.REPORT_ONLY, Assurance.CANARY, Assurance.POISONED, Assurance.OUT_OF_PROCESS)


class Reached(Record):
    """Where an attempt begins that goes on from another one: its ``judged`` steps, and the ``begun`` one after them."""

    judged: dict[str, Valid] = {}
    begun: bool = False

    def inside(self, index: int) -> bool:
        """Whether it begins in the step of this number."""
        return self.begun and index == len(self.judged)


def short_of(verdict: Valid, least: Mapping[str, float]) -> str | None:
    """Which reward is less than ``least`` asks for, for people; None where none is. What is unknown is less."""
    for name, bound in least.items():
        value = verdict.rewards.get(name)
        if value is None or value < bound:
            return f"{name} is {'unknown' if value is None else f'{value:g}'}, and {bound:g} is asked for"
    return None


def ended(judged: Mapping[str, Valid], task: Task) -> Valid | None:
    """The verdict upon the task, where no further step is reached: the last one was judged, or a reward is short."""
    if not judged:
        return None
    last = task.steps[len(judged) - 1]
    if len(judged) < len(task.steps) and short_of(judged[last.name], last.min_reward) is None:
        return None
    return whole(judged, task)


def whole(judged: Mapping[str, Valid], task: Task) -> Valid:
    """The verdict upon the task, of the steps that were reached."""
    return combined(judged, [step.name for step in task.steps], task.step_reward)


def combined(judged: Mapping[str, Valid], steps: Sequence[str], how: Literal["mean", "final"]) -> Valid:
    """One verdict of the ``judged`` steps of ``steps`` (all names, in order).

    ``reward`` and every other reward are the mean over all steps, or the final step's; ``STEP/NAME`` is each step's
    own. A step that was not reached has reward 0: an attempt earns nothing by ending early. (Harbor leaves such steps
    out of the mean, and takes the last one reached as the final one.) ``total`` is that of the steps' totals, which
    reward rules make; one that is unknown makes it unknown. Tampering in any step is total 0.
    """
    tamper = any(verdict.cause is Cause.TAMPER for verdict in judged.values())
    names = dict.fromkeys(["reward", *(name for verdict in judged.values() for name in verdict.rewards)])
    rewards: dict[str, float | None] = {name: _overall(name, judged, steps, how) for name in names}
    rewards |= {f"{step}/{name}": value for step, verdict in judged.items() for name, value in verdict.rewards.items()}
    totals = {step: verdict.total for step, verdict in judged.items()}
    total = _reward(totals, steps, how)
    if tamper:
        rewards, total = dict.fromkeys(rewards, 0.0), 0.0
    causes = [verdict.cause for verdict in judged.values() if verdict.cause is not None]
    own = rewards["reward"]
    passed = own is not None and own >= 1.0 - 1e-9
    missed = [step for step in steps if step not in judged]
    tests = {f"{step}/{test}": said for step, verdict in judged.items() for test, said in verdict.tests.items()}
    return Valid(
        rewards=rewards, total=total,
        cause=Cause.TAMPER if tamper else None if passed else causes[0] if causes else Cause.AGENT,
        flags=tuple(dict.fromkeys(flag for verdict in judged.values() for flag in verdict.flags)),
        assurance=min((verdict.assurance for verdict in judged.values()), key=_WEAKEST_FIRST.index),
        tests=tests,
        image_digest=next(iter(judged.values())).image_digest,
        detail="; ".join([*(f"{step}: {verdict.detail}" for step, verdict in judged.items() if verdict.detail),
                          *([f"not reached: {', '.join(missed)}"] if missed else [])]),
    )


def _overall(
    name: str, judged: Mapping[str, Valid], steps: Sequence[str], how: Literal["mean", "final"]
) -> float | None:
    """A step without this reward counts as 0, as in Harbor; one whose reward is unknown makes the whole unknown."""
    return _reward({step: verdict.rewards.get(name, 0.0) for step, verdict in judged.items()}, steps, how)


def _reward(values: Mapping[str, float | None], steps: Sequence[str], how: Literal["mean", "final"]) -> float | None:
    if how == "final":
        return values.get(steps[-1], 0.0)
    if any(value is None for value in values.values()):
        return None
    return sum(value for value in values.values() if value is not None) / len(steps)
