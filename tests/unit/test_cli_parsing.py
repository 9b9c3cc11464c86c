"""How the command line is read, and what its help says of groups."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from woodshed.cli.app import _COMMANDS, _GROUPS, app
from woodshed.errors import UsageError

ROOT: Any = typer.main.get_group(app)


def read(command: str, *args: str) -> None:
    """Read the arguments of a command (``runs say``), and run nothing."""
    found = ROOT
    for word in command.split():
        found = found.commands[word]
    found.make_context(command, list(args))


@pytest.mark.parametrize(("command", "args", "lacks"), [
    ("run", ("T", "--model", "--turns", "3"), "--model"),
    ("run", ("-a", "-n", "3", "T"), "-a"),
    ("limits set", ("project:a", "--slots", "--per-minute", "2"), "--slots"),
    ("tasks import human-eval", ("--out", "--json"), "--out"),
])  # fmt: skip
def test_an_option_never_takes_the_next_one_for_its_value(command: str, args: tuple[str, ...], lacks: str) -> None:
    """Whoever left a value out is told which, and not that some other thing is no model."""
    with pytest.raises(UsageError, match=f"^{lacks}: it needs a value, and '{args[args.index(lacks) + 1]}'"):
        read(command, *args)


@pytest.mark.parametrize(("command", "args"), [
    ("run", ("T", "--model=--turns", "--turns", "3")),
    ("run", ("T", "--model", "-x", "-n", "3")),
    ("sandbox run", ("--", "sh", "--timeout", "--json")),
    ("sandbox run", ("--timeout", "3", "--", "--timeout", "--json")),
    ("runs say", ("r.1", "-")),
])  # fmt: skip
def test_what_is_no_option_or_was_tied_to_one_is_a_value(command: str, args: tuple[str, ...]) -> None:
    """An equals sign says that it is meant; behind ``--`` nothing is an option."""
    read(command, *args)


def test_a_group_is_summed_up_with_all_its_commands() -> None:
    """The help of the whole names every command of each group, those of groups within among them."""
    groups = {name: ROOT.commands[name] for name in ROOT.commands if hasattr(ROOT.commands[name], "commands")}
    assert {"tasks", "runs", "sandbox"} <= set(groups)
    for group in groups.values():
        told = str(group.help).rpartition(": ")[2].rstrip(".").split(", ")
        assert sorted(told) == sorted(group.commands)


def test_every_command_stands_in_one_panel_of_the_help() -> None:
    """None is left out, and none stands twice; a run's many options stand in panels, too."""
    assert sorted(ROOT.commands) == sorted({*_COMMANDS, *_GROUPS})
    assert all(ROOT.commands[name].rich_help_panel for name in ROOT.commands)
    panels = [option.rich_help_panel for option in ROOT.commands["run"].params if hasattr(option, "opts")]
    assert len(set(panels)) > 5
    assert panels.count(None) < len(panels) / 2
