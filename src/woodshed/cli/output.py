"""What commands print: tables and notes for people on a terminal, one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PIPE_COLUMNS = 140
"""Width of a table that goes into a file or a pipe, where no terminal says how wide it is."""

out = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
err = Console(stderr=True, soft_wrap=True, highlight=False)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


_PICTURES = {
    **{code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)},
    **dict.fromkeys(range(0x7F, 0xA0), "\N{REPLACEMENT CHARACTER}"),
}


def visible(text: str) -> str:
    """``text`` of anyone's for a terminal: control characters that would steer it are shown, not sent.

    Agents, models and archives choose what stands in messages and names. Half surrogate pairs, which cannot be printed
    at all, become question marks.
    """
    return text.replace("\r\n", "\n").translate(_PICTURES).encode("utf-8", "replace").decode()


def plain(text: str) -> str:
    """``text`` as :func:`visible` makes it, and none of it markup."""
    return escape(visible(text))


def emit_json(value: Any) -> None:
    """Print ``value`` as one line of JSON on standard output. ASCII: names of files need not be Unicode."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A line for people, on standard error."""
    err.print(plain(text), style="dim")


def warn(told: Mapping[str, Any], to: Console = out) -> None:
    """What the ``selection`` of a run warns of, where it has one (``services.selection``)."""
    for agent in told.get("selection", ()):
        for words in agent["warnings"]:
            to.print(plain(words), style="bold yellow")


def fail(message: str, code: int) -> NoReturn:
    """Print the error on standard error and leave with ``code``."""
    err.print(f"[bold red]error:[/] {plain(message)}")
    raise SystemExit(code)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """A table on standard output; columns that start with ``#`` are numbers and stand right."""
    grid = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        numeric = column.startswith("#")
        grid.add_column(column.removeprefix("#"), justify="right" if numeric else "left", no_wrap=numeric)
    for row in rows:
        grid.add_row(*(plain(cell) for cell in row))
    out.print(grid, soft_wrap=False)


def percent(value: float | None) -> str:
    """A rate for people; an undefined one is a dash."""
    return "–" if value is None else f"{100 * value:.1f} %"


def number(value: float | None, form: Callable[[float], str] = lambda v: f"{v:.1f}") -> str:
    """A figure for people; an undefined one is a dash."""
    return "–" if value is None else form(value)
