"""Reward rules of a file, and whether tasks have what rules ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from woodshed import plugins
from woodshed.errors import UsageError
from woodshed.model import Task
from woodshed.model.rules import PluginRule, RuleSet, rule_set
from woodshed.services.declared import read_toml

if TYPE_CHECKING:
    from woodshed.verify.rules import Plugin

_EXAMPLE = "docs/rewards.md shows an example."


def load(file: Path) -> RuleSet:
    """The rules that a TOML file declares in ``[[rules]]`` tables. Raises UsageError naming file, field and remedy."""
    declared = read_toml(file, "docs/rewards.md")
    if declared.pop("version", 1) != 1:
        raise UsageError("a newer version of rules", file=file, field="version", remedy="Update Woodshed, or write 1.")
    if unknown := next((key for key in declared if key != "rules"), None):
        raise UsageError("unknown key", file=file, field=unknown, remedy=f"Write [[rules]] tables; {_EXAMPLE}")
    tables = declared.get("rules", [])
    if not isinstance(tables, list):
        raise UsageError("a list of tables is needed", file=file, field="rules", remedy="Write [[rules]].")
    rules = rule_set(tables, file=file)
    found(rules, file=file, field="rules")
    return rules


def found(rules: RuleSet, *, file: object = None, field: str = "rules") -> dict[str, Plugin]:
    """The plugins that ``rules`` use, by name. Raises UsageError for one that is not installed."""
    functions: dict[str, Plugin] = {}
    for number, rule in enumerate(rules.rules):
        if isinstance(rule, PluginRule):
            try:
                functions[rule.use] = plugins.rule(rule.use)
            except UsageError as error:
                remedy = error.remedy if plugins.names("rules") else "Install the package that brings it."
                raise UsageError(error.message, file=file, field=f"{field}.{number}.use", remedy=remedy) from None
    return functions


def check(rules: RuleSet | None, tasks: Sequence[Task], tell: Callable[[str], None]) -> None:
    """Every task has what its rules (the run's, else its own) ask for. ``tell`` hears of values that will be unknown.

    Raises UsageError for a test, reward or plugin that is not there.
    """
    blind = [task.id for task in tasks if (own := rules or task.rules) and _blind(own, task)]
    for task in tasks:
        if rules is None and task.rules is not None:
            found(task.rules, file=task.folder / "task.toml", field="woodshed.rules")
        for verifier in [step.verifier for step in task.steps] or [task.verifier]:
            if rules is not None and (misfit := rules.misfit(verifier.expected_tests, verifier.rewards)):
                raise UsageError(f"{misfit[1]} of {task.id}", file="--rules", field=f"rules.{misfit[0]}",
                                 remedy="Name what every task of the run, and each of its steps, has; or run the tasks "
                                 "apart.")
    if blind:
        tell(f"without a reference solution some rewards are unknown, and so is the total: {_named(blind)}")


def _blind(rules: RuleSet, task: Task) -> bool:
    solutions = [step.solution for step in task.steps] or [task.solution]
    return None in solutions and "reference" in rules.wanted()


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
