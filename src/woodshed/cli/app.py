"""The Typer application: commands by module, and one place where errors become exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from woodshed import __version__
from woodshed.cli import bench, doctor, export, model, run, sandbox, show, tasks
from woodshed.cli.output import emit_json, err, fail
from woodshed.errors import UsageError, WoodshedError

app = typer.Typer(
    name="woodshed",
    help="The place where open-weight agents practise: real tasks, isolated sandboxes, verdicts you can believe.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("show")(show.show)
app.command("trace")(show.trace)
app.command("export")(export.export)
app.command("doctor")(doctor.doctor)
app.add_typer(tasks.app, name="tasks", help="Import and list tasks.")
app.add_typer(sandbox.app, name="sandbox", help="A sandbox by hand.")
app.add_typer(model.app, name="model", help="Local open-weight models.")
app.add_typer(bench.app, name="bench", help="The published measurements, reproducible.")


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
        app()
    except UsageError as error:
        _report(error, 2)
    except WoodshedError as error:
        _report(error, 1)
    except KeyboardInterrupt:
        err.print("interrupted")
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(1) from None


def _report(error: WoodshedError, code: int) -> None:
    if "--json" in sys.argv:
        emit_json({"error": str(error), "type": type(error).__name__, "exit_code": code})
    fail(str(error), code)
