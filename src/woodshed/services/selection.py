"""Selection bias of runs: each agent's executions from the store, what was found, and words that say what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from woodshed.errors import Cause
from woodshed.measure.bias import Bias, End, Finding, Tried, bias
from woodshed.model import Agent, Attempt, Durability, EventKind, Invalid, Outcome, Run, Valid
from woodshed.services.home import Home
from woodshed.store.records import Execution, ExecutionState

_STAGES = {"prepare": End.BEFORE, "act": End.DURING}
_REMEDIES = {
    End.BEFORE: "retry it more ([[retry]] stage = \"prepare\")",
    End.DURING: "retry it more ([[retry]] stage = \"act\"), or let attempts go on where they broke (durability fine)",
    End.AFTER: "raise the deadlines of capture and verify, or retry more",
}


@dataclass(frozen=True, slots=True)
class Selected:
    """What was found of one agent; ``unit`` is that of lengths, and ``most`` where and why it broke most."""

    agent: str
    unit: str
    bias: Bias
    most: tuple[End, str]

    def told(self) -> dict[str, Any]:
        """As JSON values, with warnings in words."""
        return {"agent": self.agent, "unit": self.unit, **self.bias.told(), "warnings": list(self.warnings())}

    def warnings(self) -> Iterator[str]:
        """What is over-represented among that which broke, by how much, and what to do; nothing where all is well."""
        found, (end, cause) = self.bias, self.most
        if not found.warns:
            return
        for words in (_task(found.task), _length(found.length, self.unit), _reward(found.reward)):
            if words is not None:
                yield f"selection bias, {self.agent}: {words}"
        yield (f"what broke, broke mostly {end.value} acting ({cause}): {_REMEDIES[end]}; "
               "else drop the groups that lost attempts from training")


def selected(home: Home, run: Run, attempts: Sequence[Attempt]) -> list[Selected]:
    """Of each agent of which enough broke to tell. ``attempts`` are the run's; costs nothing where none ever broke.

    Raises StoreFault.
    """
    if not any(map(_suspect, attempts)):
        return []
    made = []
    for agent in run.spec.agents:
        tried, causes, unit = _tried(home, agent, [one for one in attempts if one.agent == agent.name])
        found = bias(tried, agents=len(run.spec.agents), seed=run.spec.seed)
        if found is not None:
            made.append(Selected(agent.name, unit, found, max(causes, key=lambda one: (causes[one], one))))
    return made


def warnings(found: Sequence[Selected]) -> list[str]:
    """All that is to be warned of."""
    return [words for one in found for words in one.warnings()]


def _suspect(attempt: Attempt) -> bool:
    return attempt.executions > 1 or (attempt.outcome is not None and isinstance(attempt.outcome.verdict, Invalid))


def _tried(
    home: Home, agent: Agent, attempts: Sequence[Attempt]
) -> tuple[list[Tried], Counter[tuple[End, str]], str]:
    """Every execution of an agent. One that a later one went on with (fine durability) is no draw of its own."""
    whole: list[tuple[Attempt, Outcome | None, End, int]] = []
    for attempt in attempts:
        if attempt.executions > 1 and agent.durability is not Durability.FINE:
            whole += [(attempt, one.outcome, *_of_execution(home, one)) for one in home.store.executions(attempt.id)
                      if one.state not in (ExecutionState.OPEN, ExecutionState.DONE)]
        if attempt.outcome is not None and attempt.executions:
            whole.append((attempt, attempt.outcome, _end(attempt.outcome), attempt.outcome.usage.turns))
    by_turns = any(turns for *_, turns in whole)
    tried, causes = [], Counter[tuple[End, str]]()
    for attempt, outcome, end, turns in whole:
        if end is not End.VALID:
            causes[end, _cause(outcome)] += 1
        length = float(turns) if by_turns else None if outcome is None else outcome.stages_s.get("act")
        verdict = outcome.verdict if outcome is not None else None
        tried.append(Tried(attempt.id, attempt.task, end, length,
                           verdict.total if isinstance(verdict, Valid) and end is End.VALID else None))
    return tried, causes, "turns" if by_turns else "seconds of acting"


def _of_execution(home: Home, one: Execution) -> tuple[End, int]:
    """How an execution without a result ended, and after how many turns: by its events, where it left no word."""
    if one.outcome is not None and isinstance(one.outcome.verdict, Invalid):
        return _end(one.outcome), one.outcome.usage.turns
    turns, ended = 0, False
    for event in home.store.events(one.attempt, one.number):
        turns += event.kind is EventKind.MODEL_RESULT and event.data.get("parent") is None
        ended |= event.kind is EventKind.STAGE and event.data.get("stage") == "act"
    return End.AFTER if ended else End.DURING if turns else End.BEFORE, turns


def _end(outcome: Outcome) -> End:
    if isinstance(outcome.verdict, Valid):
        return End.VALID
    stage = outcome.broke.stage if outcome.broke is not None else None
    if stage is None:
        return End.DURING if outcome.usage.turns else End.BEFORE
    return _STAGES.get(stage, End.AFTER)


def _cause(outcome: Outcome | None) -> str:
    if outcome is None or not isinstance(outcome.verdict, Invalid):
        return "lost with its worker"
    return "interrupted" if outcome.verdict.cause is Cause.CANCELLED else outcome.verdict.cause.value


def _task(found: Finding | None) -> str | None:
    if found is None or not found.warns:
        return None
    worst = ", ".join(f"{task} ({broken} of {all_})" for task, broken, all_ in found.most[:3])
    return f"executions of some tasks break more than others' (effect {found.effect:.2f}): {worst}"


def _length(found: Finding | None, unit: str) -> str | None:
    if found is None or not found.warns or found.raw is None or found.whole is None:
        return None
    which, lost = ("shorter", "long") if found.effect > 0 else ("longer", "short")
    return (f"{lost} executions break more: the valid ones are {100 * abs(found.effect) / found.whole:.0f} % {which} "
            f"than what was sampled (mean {found.raw:.1f} against {found.whole:.1f} {unit})" + _beyond(found))


def _reward(found: Finding | None) -> str | None:
    if found is None or not found.warns or found.raw is None or found.whole is None:
        return None
    which = "worse" if found.effect < 0 else "better"
    return (f"what broke would have done {which}: the mean reward of the valid is {found.raw:.3f}, weighted for their "
            f"lengths {found.whole:.3f}")


def _beyond(found: Finding) -> str:
    return f"; {100 * found.beyond:.0f} % went further than any valid one" if found.beyond >= 0.01 else ""


def told(found: Sequence[Selected]) -> Mapping[str, Any]:
    """As a part of a run's summary: nothing where too little broke to tell."""
    return {"selection": [one.told() for one in found]} if found else {}
