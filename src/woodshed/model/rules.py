"""Reward rules as data: what a run or a task asks of an attempt beside its tests. How each scores: docs/rewards.md."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, TypeAdapter, ValidationInfo, field_validator, model_validator

from woodshed.errors import UsageError
from woodshed.model.record import Record

Need = Literal["patch", "reference", "start_tests"]
"""What a rule wants measured: the size of the changes, that of the reference's, the tests that pass untouched."""
RESERVED = "reward"
"""The verifier's own reward; no rule takes its name."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
Share = Annotated[float, Field(ge=0, le=1)]
Pattern = Annotated[str, Field(min_length=1, max_length=500)]


class Rule(Record):
    """One named component of a reward, from 0 to 1. ``name`` defaults to the kind.

    Its ``weight`` is its part in the total. A ``gate`` multiplies the total instead; its weight is not looked at.
    Weight 0 reports a component that moves nothing.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()
    name: str = ""
    weight: float = Field(default=1.0, ge=0, le=1e6)
    gate: bool = False

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and not data.get("name"):
            return {**data, "name": data.get("use") or cls.model_fields["kind"].default}
        return data

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or name == RESERVED:
            raise ValueError(f"no name for a component: letters, digits, '_', '.' and '-', and not '{RESERVED}'")
        return name

    @property
    def counts(self) -> bool:
        """True where the total depends on it."""
        return self.gate or self.weight > 0

    def wanted(self) -> frozenset[Need]:
        """What must be measured for it."""
        return self.needs


class TestsRule(Rule):
    """The hidden tests: ``all``, or the ``fraction`` that passed. ``tests`` or a named ``reward`` narrow them."""

    __test__ = False
    kind: Literal["tests"] = "tests"
    mode: Literal["all", "fraction"] = "all"
    tests: tuple[str, ...] = ()
    reward: str | None = Field(default=None, description="a name of the task's [woodshed.rewards]")

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if self.tests and self.reward:
            raise ValueError("give tests or reward, not both")
        return self


class NoRegressionRule(Rule):
    """What passed before still passes. ``tests`` are the ids; without them, those that pass on the untouched start."""

    kind: Literal["no_regression"] = "no_regression"
    mode: Literal["all", "fraction"] = "all"
    tests: tuple[str, ...] = ()

    def wanted(self) -> frozenset[Need]:
        """The start's passing tests, where none are named."""
        return frozenset() if self.tests else frozenset({"start_tests"})


class PatchSizeRule(Rule):
    """Lines added and removed, against ``lines`` or the reference's. Full up to ``slack`` times, then as 1/size."""

    kind: Literal["patch_size"] = "patch_size"
    lines: int | None = Field(default=None, gt=0, description="in place of the reference's size")
    slack: float = Field(default=2.0, ge=1, le=1000)
    floor: Share = 0.1

    def wanted(self) -> frozenset[Need]:
        """The patch, and the reference's where no lines are named."""
        return frozenset({"patch"}) if self.lines else frozenset({"patch", "reference"})


class ScopeRule(Rule):
    """The share of touched files that are among ``files`` (patterns below the workdir) or the reference's."""

    kind: Literal["scope"] = "scope"
    files: tuple[Pattern, ...] = ()
    floor: Share = 0.0

    def wanted(self) -> frozenset[Need]:
        """The patch, and the reference's where no files are named."""
        return frozenset({"patch"}) if self.files else frozenset({"patch", "reference"})


class ProtectedRule(Rule):
    """0 where tests were weakened or a path that steers the verification was touched. A gate unless told otherwise."""

    needs = frozenset({"patch"})
    kind: Literal["protected"] = "protected"
    gate: bool = True


class ToolBudgetRule(Rule):
    """Calls that neither read nor check: full up to ``calls``, then as 1/calls."""

    kind: Literal["tool_budget"] = "tool_budget"
    calls: int = Field(gt=0)
    floor: Share = 0.0


class UnsafeActionsRule(Rule):
    """1/(1+n) for n kinds of unsafe actions beyond ``allowed``; ``patterns`` are regular expressions over commands."""

    kind: Literal["unsafe_actions"] = "unsafe_actions"
    allowed: int = Field(default=0, ge=0)
    patterns: tuple[Pattern, ...] = ()
    floor: Share = 0.0

    _compiled = field_validator("patterns")(lambda patterns: _regular(patterns))


class VerifiedRule(Rule):
    """The agent itself ran a check after its last edit: 1 where one passed, ``failing`` where all failed, else 0."""

    kind: Literal["verified_before_finish"] = "verified_before_finish"
    patterns: tuple[Pattern, ...] = Field(default=(), description="commands that are checks here, beside the known")
    failing: Share = 0.5

    _compiled = field_validator("patterns")(lambda patterns: _regular(patterns))


class ClaimRule(Rule):
    """1 where the agent's claim of success or failure is what was verified, else 0; ``silent`` without a claim."""

    kind: Literal["claim_matches"] = "claim_matches"
    patterns: tuple[Pattern, ...] = Field(default=(), description="words that admit a failure, beside the known")
    silent: Share = 0.5

    _compiled = field_validator("patterns")(lambda patterns: _regular(patterns))


class CheckRule(Rule):
    """A command's result on the end tree, beside that on the start tree; each run in a fresh sandbox without network.

    ``exit``: 1 where it ends with 0. ``number`` (the last match of ``pattern`` in its output) and ``seconds``: 1 where
    the end is no worse than ``slack`` times the start; with ``target``, from 0 at the start's value to 1 at ``target``
    times it. ``better`` says which way is good.
    """

    kind: Literal["check"] = "check"
    command: str = Field(min_length=1, max_length=10_000)
    measure: Literal["exit", "number", "seconds"] = "exit"
    better: Literal["lower", "higher"] = "lower"
    pattern: Pattern = r"[-+]?\d+(?:\.\d+)?"
    slack: float = Field(default=1.1, ge=1, le=1000)
    target: float | None = Field(default=None, gt=0, le=1000)
    floor: Share = 0.0
    repeats: int = Field(default=1, ge=1, le=100, description="runs on each tree; the fastest counts")
    timeout_s: float = Field(default=60.0, gt=0, le=86_400)

    _compiled = field_validator("pattern")(lambda pattern: _regular((pattern,))[0])

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.measure == "seconds" and self.better == "higher":
            raise ValueError("no check is better for taking longer; leave better out")
        if self.target is not None and not (self.target < 1 if self.better == "lower" else self.target > 1):
            raise ValueError(f"a target of {self.target} is no better than the start where {self.better} is better")
        return self

    @property
    def key(self) -> tuple[str, float, int]:
        """What is run, whatever is made of it: rules of equal keys share their runs."""
        return self.command, self.timeout_s, self.repeats


class PluginRule(Rule):
    """A function of the entry point group ``woodshed.rules``, called ``use``; ``options`` are its own."""

    kind: Literal["plugin"] = "plugin"
    use: str = Field(min_length=1)
    options: dict[str, Any] = {}
    measures: tuple[Need, ...] = Field(default=(), description="what it wants measured")

    def wanted(self) -> frozenset[Need]:
        """What the declaration says."""
        return frozenset(self.measures)


AnyRule = Annotated[
    TestsRule | NoRegressionRule | PatchSizeRule | ScopeRule | ProtectedRule | ToolBudgetRule | UnsafeActionsRule
    | VerifiedRule | ClaimRule | CheckRule | PluginRule,
    Field(discriminator="kind"),
]
KINDS: dict[str, type[Rule]] = {
    kind.model_fields["kind"].default: kind
    for kind in (TestsRule, NoRegressionRule, PatchSizeRule, ScopeRule, ProtectedRule, ToolBudgetRule,
                 UnsafeActionsRule, VerifiedRule, ClaimRule, CheckRule, PluginRule)
}


class RuleSet(Record):
    """Rules that make one total together, in order; no two of one name."""

    version: Literal[1] = 1
    rules: tuple[AnyRule, ...] = Field(min_length=1)

    @field_validator("rules")
    @classmethod
    def _apart(cls, rules: tuple[Rule, ...], _info: ValidationInfo) -> tuple[Rule, ...]:
        if twice := _doubled(rule.name for rule in rules):
            raise ValueError(f"two rules are called '{twice}'")
        return rules

    def wanted(self) -> frozenset[Need]:
        """What must be measured for all of them."""
        return frozenset[Need]().union(*(rule.wanted() for rule in self.rules))

    def misfit(self, expected: Collection[str], rewards: Collection[str]) -> tuple[str, str] | None:
        """The first field (``0.tests``) that asks for what a task does not have, and what that is.

        ``expected`` are the task's expected tests, ``rewards`` the names of its rewards.
        """
        for number, rule in enumerate(self.rules):
            for test in getattr(rule, "tests", ()):
                if test not in expected:
                    return f"{number}.tests", f"{test!r} is not among the expected tests"
            named = rule.reward if isinstance(rule, TestsRule) else None
            if named is not None and named not in rewards:
                return f"{number}.reward", f"there is no reward '{named}'"
            if rule.name in rewards and rule.name != named:
                return f"{number}.name", f"'{rule.name}' is the name of a reward"
        return None

    def checks(self) -> list[CheckRule]:
        """The commands to run, each once."""
        found = {rule.key: rule for rule in self.rules if isinstance(rule, CheckRule)}
        return list(found.values())


def rule_set(tables: Sequence[Any], *, file: object, field: str = "rules") -> RuleSet:
    """The rules that ``tables`` (parsed TOML) declare.

    Raises UsageError naming file, field (``rules.0.weight``) and remedy. They are read one by one: an error in a union
    of kinds would name none of their keys.
    """
    if not tables:
        raise UsageError("no rule at all", file=file, field=field, remedy=f"Add a [[{field}]] table.")
    rules = [_rule(table, file, f"{field}.{number}") for number, table in enumerate(tables)]
    if twice := _doubled(rule.name for rule in rules):
        raise UsageError(f"two rules are called '{twice}'", file=file, field=field, remedy="Give one another name.")
    return RuleSet(rules=TypeAdapter(tuple[AnyRule, ...]).validate_python(tuple(rules)))


def _rule(table: Any, file: object, field: str) -> Rule:
    if not isinstance(table, Mapping):
        raise UsageError("a rule is a table", file=file, field=field, remedy='Write [[rules]] and kind = "tests".')
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        near = get_close_matches(str(kind), KINDS, n=1)
        what = "required, but missing" if kind is None else f"unknown kind {kind!r}"
        raise UsageError(what, file=file, field=f"{field}.kind",
                         remedy=f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(KINDS)}.")
    try:
        return KINDS[kind].parse(dict(table))
    except UsageError as error:
        inner = error.field if error.field != KINDS[kind].__name__ else None
        raise UsageError(error.message, file=file, field=f"{field}.{inner}" if inner else field,
                         remedy=error.remedy) from None


def _doubled(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]  # add gives None: the name was new


def _regular(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, RecursionError) as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return patterns
