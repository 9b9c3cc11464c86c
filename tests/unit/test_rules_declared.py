"""Rules as data: what is wrong with a declaration is said with file, field and remedy; what is right can be stored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rulekit import patch, rules, seen, tool, value, verdict
from woodshed.errors import UsageError
from woodshed.model.grade import Observed
from woodshed.model.rules import KINDS, RuleSet
from woodshed.services import rulesets
from woodshed.tasks.load import load_task

EVERY = (
    {"kind": "tests"}, {"kind": "no_regression"}, {"kind": "patch_size"}, {"kind": "scope"}, {"kind": "protected"},
    {"kind": "tool_budget", "calls": 3}, {"kind": "unsafe_actions"}, {"kind": "verified_before_finish"},
    {"kind": "claim_matches"}, {"kind": "check", "command": "true"}, {"kind": "plugin", "use": "mine"},
)


def test_every_kind_can_be_declared_and_survives_storing() -> None:
    """Rules are records: as JSON and back they are the same; each is called by its kind unless named."""
    made = rules(*EVERY)
    assert RuleSet.model_validate(json.loads(json.dumps(made.to_json()))) == made
    assert {rule.kind for rule in made.rules} == set(KINDS)
    assert [rule.name for rule in made.rules] == [*list(KINDS)[:-1], "mine"]


@pytest.mark.parametrize(("table", "field", "words"), [
    ({"kind": "patchsize"}, "rules.0.kind", "Did you mean 'patch_size'?"),
    ({}, "rules.0.kind", "required, but missing"),
    ({"kind": 3}, "rules.0.kind", "unknown kind 3"),
    ({"kind": "tests", "weight": -1}, "rules.0.weight", "greater than or equal to 0"),
    ({"kind": "tests", "weight": float("nan")}, "rules.0.weight", "finite number"),
    ({"kind": "tests", "weight": float("inf")}, "rules.0.weight", "finite number"),
    ({"kind": "patch_size", "slak": 3}, "rules.0.slak", "Did you mean 'slack'?"),
    ({"kind": "patch_size", "floor": 1.5}, "rules.0.floor", "less than or equal to 1"),
    ({"kind": "tool_budget"}, "rules.0.calls", "required, but missing"),
    ({"kind": "check", "command": "x", "pattern": "("}, "rules.0.pattern", "no regular expression"),
    ({"kind": "check", "command": "x", "target": 2}, "rules.0", "no better than the start"),
    ({"kind": "check", "command": "x", "better": "higher", "target": 1}, "rules.0", "no better than the start"),
    ({"kind": "check", "command": "x", "measure": "seconds", "better": "higher"}, "rules.0", "taking longer"),
    ({"kind": "tests", "name": "reward"}, "rules.0.name", "no name for a component"),
    ({"kind": "tests", "tests": ["a"], "reward": "b"}, "rules.0", "not both"),
    ("tests", "rules.0", "a rule is a table"),
])  # fmt: skip
def test_what_is_wrong_is_named(table: Any, field: str, words: str) -> None:
    """File, dotted field, and what to do, for the first thing wrong."""
    with pytest.raises(UsageError) as caught:
        rules(table)
    assert str(caught.value).startswith(f"rules.toml: {field}: ")
    assert words in str(caught.value)


def test_two_rules_of_one_name_are_refused() -> None:
    """A component must be told from another."""
    with pytest.raises(UsageError, match="two rules are called 'tests'"):
        rules({"kind": "tests"}, {"kind": "tests", "mode": "fraction"})


@pytest.mark.parametrize(("text", "words"), [
    ("", "no rule at all"), ("rules = 3", "a list of tables"), ("[[rule]]\nkind = 'tests'", "unknown key"),
    ("[[rules]\n", "broken TOML"), ("version = 2\n[[rules]]\nkind='tests'", "newer version"),
    ("[[rules]]\nkind = 'plugin'\nuse = 'nobodys'", "unknown rule 'nobodys'"), ("\x00", "broken TOML"),
])  # fmt: skip
def test_a_file_that_is_no_rules_is_refused(text: str, words: str, tmp_path: Path) -> None:
    """The file stands first in the message."""
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        rulesets.load(file)
    assert str(caught.value).startswith(str(file))
    with pytest.raises(UsageError, match="cannot be read"):
        rulesets.load(tmp_path / "absent.toml")


def task_with(folder: Path, tables: str) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test.sh").write_text("exit 0\n")
    (folder / "tests" / "test_a.py").write_text("")
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "task.toml").write_text(
        '[woodshed]\nexpected_tests = ["test_a::one"]\nrewards = {docs = ["test_a::one"]}\n' + tables)
    return folder


def test_a_task_declares_rules_of_its_own(tmp_path: Path) -> None:
    """In [[woodshed.rules]] tables, beside the rewards it names; a rule may weigh one of those."""
    tables = ('[[woodshed.rules]]\nkind = "tests"\nreward = "docs"\nname = "docs"\n'
              '[[woodshed.rules]]\nkind = "patch_size"\n')
    found = load_task(task_with(tmp_path / "t", tables)).rules
    assert found is not None
    assert [rule.name for rule in found.rules] == ["docs", "patch_size"]
    assert load_task(task_with(tmp_path / "plain", "")).rules is None


@pytest.mark.parametrize(("table", "field"), [
    ('kind = "tests"\ntests = ["test_a::two"]', "woodshed.rules.0.tests"),
    ('kind = "tests"\nreward = "code"', "woodshed.rules.0.reward"),
    ('kind = "scope"\nname = "docs"', "woodshed.rules.0.name"),
    ('kind = "scoop"', "woodshed.rules.0.kind"),
])  # fmt: skip
def test_a_task_whose_rules_ask_for_what_it_lacks_is_refused(table: str, field: str, tmp_path: Path) -> None:
    """Tests it does not expect, rewards it does not name, a component called like one of its rewards."""
    with pytest.raises(UsageError) as caught:
        load_task(task_with(tmp_path / "t", f"[[woodshed.rules]]\n{table}\n"))
    assert f"task.toml: {field}: " in str(caught.value)


def test_rules_of_a_run_are_held_against_every_task_of_it(tmp_path: Path) -> None:
    """What one of them lacks is an error before anything runs; what will be unknown is told."""
    task = load_task(task_with(tmp_path / "t", ""))
    told: list[str] = []
    rulesets.check(rules({"kind": "tests", "tests": ["test_a::one"]}, {"kind": "patch_size"}), [task], told.append)
    assert told == ["without a reference solution some rewards are unknown, and so is the total: t"]
    with pytest.raises(UsageError, match=r"--rules: rules\.0\.reward: there is no reward 'code' of t"):
        rulesets.check(rules({"kind": "tests", "reward": "code"}), [task], told.append)


def test_a_plug_in_rule_enters_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that declares one in the group woodshed.rules is found by the rule's name."""
    from woodshed import plugins

    (tmp_path / "brevity.py").write_text("def score(evidence, options):\n    return options['give']\n")
    info = tmp_path / "brevity-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brevity\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[woodshed.rules]\nbrevity = brevity:score\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins._found.cache_clear()
    try:
        found = rulesets.found(rules({"kind": "plugin", "use": "brevity"}))
        with pytest.raises(UsageError, match="Did you mean 'brevity'"):
            rulesets.found(rules({"kind": "plugin", "use": "brevty"}))
    finally:
        plugins._found.cache_clear()
    assert found["brevity"](None, {"give": 0.25}) == 0.25  # type: ignore[arg-type]  # this one does not look at it


PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()


def test_the_page_on_rewards_has_every_rule_and_its_examples_load(tmp_path: Path) -> None:
    """A section for each kind; every TOML example is one; the plug-in is the function it says it is."""
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == list(KINDS)
    examples = [text for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "rules]]" in text]
    assert len(examples) == 4
    for text in examples:
        if "woodshed.rules" in text:
            task_with(tmp_path / "task", text)
            assert load_task(tmp_path / "task").rules
        else:
            (tmp_path / "rules.toml").write_text(text)
            rulesets.load(tmp_path / "rules.toml")
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    space: dict[str, Any] = {}
    exec(compile(source, "docs/rewards.md", "exec", dont_inherit=True), space)
    assert value({"kind": "plugin", "use": "brevity"}, seen(), {"brevity": space["brevity"]}) == 1.0


@pytest.mark.parametrize(("kind", "figure"), [
    ("patch_size", "four times the reference scores 0.55"), ("scope", "One file too many beside the right one: 0.5"),
    ("tool_budget", "Twice the\nbudget: 0.5"), ("tests", "0.75 by `fraction`"),
])  # fmt: skip
def test_a_figure_on_the_page_is_what_the_rule_gives(kind: str, figure: str) -> None:
    """Worked examples are worked by the code, with its defaults."""
    observed = Observed(patch=patch(add=40), reference=patch(add=10))
    wide = Observed(patch=patch(add=5, other=5), reference=patch(add=10))
    edits = [tool("edit_file", path="add.py", old="a", new="b")] * 4
    given = {
        "patch_size": value({"kind": "patch_size"}, seen(observed=observed)),
        "scope": value({"kind": "scope"}, seen(observed=wide)),
        "tool_budget": value({"kind": "tool_budget", "calls": 2}, seen(*edits)),
        "tests": value({"kind": "tests", "mode": "fraction"}, seen(judged=verdict(3))),
    }
    assert figure in PAGE
    assert given[kind] == pytest.approx(float(re.findall(r"\d\.\d+", figure)[0]))
