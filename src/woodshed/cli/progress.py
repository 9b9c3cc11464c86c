"""A progress bar on a terminal for work that counts (done, total, what); silent elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from woodshed.cli.output import err, plain


@contextmanager
def bar() -> Iterator[Callable[[int, int | None, str], None]]:
    """Yields what is to be told of progress. ``what`` is anyone's text."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[what]}"))
    with Progress(*columns, console=err, disable=not err.is_terminal) as shown:
        task = shown.add_task("", total=None, what="")
        yield lambda done, total, what: shown.update(task, completed=done, total=total, what=plain(what))
