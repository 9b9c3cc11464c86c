"""From rules and evidence to a grade: each component by its function, one total by one law."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from woodshed.errors import Cause
from woodshed.model import Valid
from woodshed.model.grade import Component, Grade
from woodshed.model.rules import (
    AnyRule,
    CheckRule,
    ClaimRule,
    NoRegressionRule,
    PatchSizeRule,
    PluginRule,
    ProtectedRule,
    RuleSet,
    ScopeRule,
    TestsRule,
    ToolBudgetRule,
    UnsafeActionsRule,
    VerifiedRule,
)
from woodshed.verify.rules import conduct, outcome, work
from woodshed.verify.rules.evidence import Evidence, Score

Plugin = Callable[[Evidence, Mapping[str, Any]], float | None]
"""A rule of a third party's: evidence and its ``options`` in; from 0 to 1, or None where it cannot be known."""


def graded(rules: RuleSet, evidence: Evidence, plugins: Mapping[str, Plugin]) -> Grade:
    """The grade of ``evidence`` by ``rules``. Never raises for what evidence holds; a plugin that raises gives None."""
    components = tuple(_component(rule, evidence, plugins) for rule in rules.rules)
    if evidence.verdict.cause is Cause.TAMPER:  # what is unknown stays so; the total is 0 all the same
        components = tuple(part if part.value is None else part.model_copy(update={"value": 0.0, "why": "tampering"})
                           for part in components)
    return Grade(rules=rules, components=components, total=total_of(components, evidence.verdict),
                 observed=evidence.observed, verdict=evidence.verdict)


def total_of(components: Sequence[Component], verdict: Valid) -> float | None:
    """The weighted mean of the components, times every gate; None when one that counts is None.

    Tampering and a declared limit exceeded have total 0, whatever the rules. Where no component has a weight, the
    verifier's own reward stands for the mean.
    """
    if verdict.cause in (Cause.TAMPER, Cause.BUDGET):
        return 0.0
    weighed = [part for part in components if not part.gate and part.weight > 0]
    gates = [part.value for part in components if part.gate]
    values = [part.value for part in weighed]
    if any(value is None for value in (*values, *gates)):
        return None
    if weighed:
        mean = math.fsum(part.weight * (part.value or 0.0) for part in weighed) / math.fsum(p.weight for p in weighed)
    else:
        own = outcome.own_reward(verdict)
        if own is None:
            return None
        mean = own
    return min(1.0, max(0.0, mean * math.prod(value for value in gates if value is not None)))


def _component(rule: AnyRule, evidence: Evidence, plugins: Mapping[str, Plugin]) -> Component:
    score = _score(rule, evidence, plugins)
    return Component(name=rule.name, kind=rule.kind, value=score.value, weight=rule.weight, gate=rule.gate,
                     why=score.why)


def _score(rule: AnyRule, evidence: Evidence, plugins: Mapping[str, Plugin]) -> Score:
    match rule:
        case TestsRule():
            return outcome.tests(rule, evidence)
        case NoRegressionRule():
            return outcome.no_regression(rule, evidence)
        case PatchSizeRule():
            return work.patch_size(rule, evidence)
        case ScopeRule():
            return work.scope(rule, evidence)
        case ProtectedRule():
            return work.protected(rule, evidence)
        case CheckRule():
            return work.check(rule, evidence)
        case ToolBudgetRule():
            return conduct.tool_budget(rule, evidence)
        case UnsafeActionsRule():
            return conduct.unsafe_actions(rule, evidence)
        case VerifiedRule():
            return conduct.verified_before_finish(rule, evidence)
        case ClaimRule():
            return conduct.claim_matches(rule, evidence)
        case PluginRule():
            return _of_plugin(rule, evidence, plugins)


def _of_plugin(rule: PluginRule, evidence: Evidence, plugins: Mapping[str, Plugin]) -> Score:
    if (plugin := plugins.get(rule.use)) is None:
        return Score(None, f"there is no plugin '{rule.use}' here")
    try:
        value = plugin(evidence, rule.options)
    except Exception as error:  # anyone's code: that it broke says nothing about the agent
        return Score(None, f"the plugin '{rule.use}' raised {type(error).__name__}: {error}")
    if value is None:
        return Score(None, f"the plugin '{rule.use}' could not tell")
    if isinstance(value, bool | int | float) and 0 <= value <= 1:  # never true of NaN
        return Score(float(value))
    return Score(None, f"the plugin '{rule.use}' returned {value!r:.60}, which is not from 0 to 1")
