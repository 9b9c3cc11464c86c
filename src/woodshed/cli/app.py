"""The Typer application: commands by module, and one place where errors become exit codes.

A command's module is imported when the command is asked for: all of them together bring database, HTTP client and
model catalogue, half a second for whoever wants one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from itertools import chain
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from woodshed.cli.output import emit_json, err, fail
from woodshed.cli.parsing import Command
from woodshed.errors import UsageError, WoodshedError
from woodshed.version import __version__

_COMMANDS = {"run": "run", "show": "show", "trace": "show", "report": "measures", "measures": "measures",
             "rate": "measures", "compare": "compare", "regrade": "regrade", "replay": "replay", "fork": "fork",
             "groups": "groups", "export": "export", "serve": "serve",
             "worker": "worker", "plan": "plan", "scale": "scale", "doctor": "doctor"}
"""Each command and the module here whose function of that name it is."""
_GROUPS = {
    "tasks": "Tasks, written, found and calibrated",
    "model": "Local open-weight models",
    "image": "Images of containers",
    "sandbox": "A sandbox by hand",
    "runs": "Runs at work, seen and steered",
    "schedules": "Runs that begin by themselves, at times or upon files",
    "limits": "How much of a project or an endpoint is at work",
    "bench": "The published measurements, reproducible",
}
"""Each group, the ``app`` of the module of that name here, and what it is for; the help adds the names in it."""
_PANELS = {
    "Attempts": ("run", "show", "trace", "report", "measures", "rate", "compare", "regrade", "replay", "fork"),
    "Training": ("groups", "export", "serve"),
    "What attempts need": ("tasks", "model", "image", "sandbox"),
    "Many runs, many machines": ("runs", "worker", "schedules", "limits", "plan", "scale"),
    "This machine": ("doctor", "bench"),
}
"""Where each stands in the help."""


class _Commands(MutableMapping[str, Any]):
    """Every command by name, its module imported when it is first looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            if name not in set(self):
                raise KeyError(name)
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(_PANELS.values())

    def __len__(self) -> int:
        return len(_COMMANDS) + len(_GROUPS)

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError(name)


def _load(name: str) -> Any:
    """The command as Typer makes it of its function or its group."""
    holder = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    panel = next(panel for panel, names in _PANELS.items() if name in names)
    module = import_module(f"woodshed.cli.{_COMMANDS.get(name, name)}")
    if name in _GROUPS:
        holder.add_typer(module.app, name=name, help=f"{_GROUPS[name]}: {', '.join(_within(module.app))}.",
                         rich_help_panel=panel)
    else:
        holder.command(name, cls=Command, rich_help_panel=panel)(getattr(module, name))
    holder.callback()(lambda: None)  # with one, a single command stays a member of a group
    return typer.main.get_group(holder).commands[name]


def _within(group: typer.Typer) -> list[str]:
    """The names of a group's commands, each of which reads its options as :class:`Command` does."""
    names: list[str] = []
    for told in group.registered_commands:
        told.cls = Command
        names.append(told.name or str(getattr(told.callback, "__name__", "")))
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _within(inner.typer_instance)
            names.append(str(inner.name))
    return names


class _Root(TyperGroup):
    """The group of all commands, none imported yet."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": _Commands()})


app = typer.Typer(
    name="woodshed",
    cls=_Root,
    help="The place where open-weight agents practise: real tasks, isolated sandboxes, verdicts you can believe.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"woodshed {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 a fault of ours or the world's, 2 usage, 130 interrupted."""
    try:
        _run()
    except UsageError as error:
        _report(error, 2)
    except WoodshedError as error:
        _report(error, 1)
    except (KeyboardInterrupt, typer.Abort):
        err.print("interrupted")
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(1) from None


def _run() -> None:
    """The command; with --json, what Typer itself refuses (an unknown option, say) is an object, too."""
    if "--json" not in sys.argv:
        app()
        return
    try:
        raise SystemExit(app(standalone_mode=False))
    except typer.exceptions.TyperException as error:
        emit_json({"error": error.format_message(), "type": type(error).__name__, "exit_code": error.exit_code})
        fail(error.format_message(), error.exit_code)


def _report(error: WoodshedError, code: int) -> None:
    if "--json" in sys.argv:
        emit_json({"error": str(error), "type": type(error).__name__, "exit_code": code})
    fail(str(error), code)
