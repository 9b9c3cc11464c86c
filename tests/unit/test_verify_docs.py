"""The page about verification names every flag and every assurance."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from woodshed.errors import UsageError
from woodshed.harness.cheats import CHEATS, Cheating, Need, holds
from woodshed.model import Assurance, Framework
from woodshed.tasks.probes import ProbeTable

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verification.md").read_text()


def test_every_flag_is_described() -> None:
    """Each flag a verdict can carry stands in the table."""
    source = "".join(path.read_text() for path in (ROOT / "src" / "woodshed" / "verify").glob("*.py"))
    flags = set(re.findall(r'"(tamper:[a-z_]+)"', source)) | set(re.findall(r'flags=\("([a-z_:]+)"', source))
    flags |= {"missing_ids", "duplicate_ids", "weakens_tests", "outside_capture", "lookalike_path", "canary_error",
              "exit_status", "setup_failed", "no_report", "no_reward", "over:LIMIT"}
    assert len(flags) > 15
    assert {flag for flag in flags if f"`{flag}`" not in PAGE} == set()


def test_every_assurance_is_described() -> None:
    """Each assurance has its row, with its known evasions."""
    assert [name for name in Assurance if f"| `{name}` |" not in PAGE] == []


def test_the_table_of_cheats_is_the_suite() -> None:
    """Each cheat has its row, in order: what it does and fits, its flags, and from where it is stopped."""
    rows = re.findall(r"^\| `cheat:([a-z-]+)` \| (.+) \| (.+) \| (.+) \| `([a-z_]+)` \|$", PAGE, re.MULTILINE)
    kinds = {name: ", ".join(kind.value for kind in Framework if kind in cheat.frameworks)
             for name, cheat in CHEATS.items()}
    assert rows == [
        (name, cheat.line,
         ("any" if cheat.frameworks == frozenset(Framework) else kinds[name])
         + ("" if cheat.need is Need.NOTHING else f", {cheat.need.value}"),
         ", ".join(f"`{flag}`" for flag in cheat.flags) or "–", cheat.stopped.value)
        for name, cheat in CHEATS.items()]


def test_every_evasion_is_named_at_the_levels_that_it_evades() -> None:
    """A cheat that a canary does not stop stands by name in the table of assurances."""
    table = PAGE.partition("## Assurance")[2].partition("## Flags")[0]
    evasions = [name for name, cheat in CHEATS.items() if not holds(Assurance.CANARY, cheat.stopped)]
    assert evasions
    assert [name for name in evasions if f"`cheat:{name}`" not in table] == []


def test_every_flag_of_a_cheat_is_described() -> None:
    """What a verdict may say of a cheat stands in the table of flags."""
    said = PAGE.partition("## Flags")[2].partition("## Protected")[0]
    flags = {flag for cheat in CHEATS.values() for flag in cheat.flags if not flag.startswith("over:")}
    assert {flag for flag in flags if f"`{flag}`" not in said} == set()


def test_every_key_of_a_probe_is_described() -> None:
    """The table of probes has each key that task.toml may say."""
    table = PAGE.partition("## Probes")[2].partition("## Assurance")[0]
    assert [key for key in ProbeTable.model_fields if f"`{key}`" not in table] == []


@pytest.mark.parametrize(("argument", "message"), [
    (None, "exit-on-import"), ("nonsense", "exit-on-import"), ("conftest-hok", "Did you mean 'cheat:conftest-hook'"),
])
def test_an_unknown_cheat_is_answered_with_the_names(argument: str | None, message: str) -> None:
    """The error lists all there are, or the one that was meant."""
    with pytest.raises(UsageError, match=message):
        Cheating(argument)
