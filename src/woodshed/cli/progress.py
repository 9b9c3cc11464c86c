"""A progress bar on a terminal for work that counts (done, total, what); elsewhere a line at every tenth of the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from woodshed.cli.output import err, note, plain


@contextmanager
def bar() -> Iterator[Callable[[int, int | None, str], None]]:
    """Yields what is to be told of progress. ``what`` is anyone's text."""
    if not err.is_terminal:
        yield _lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[what]}"))
    with Progress(*columns, console=err) as shown:
        task = shown.add_task("", total=None, what="")
        yield lambda done, total, what: shown.update(task, completed=done, total=total, what=plain(what))


@contextmanager
def counter() -> Iterator[Callable[[int, int], None]]:
    """The same for quick work that says no more than how much of it is done; elsewhere nothing."""
    if not err.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress

    with Progress(BarColumn(bar_width=24), MofNCompleteColumn(), console=err) as shown:
        task = shown.add_task("", total=None)
        yield lambda done, total: shown.update(task, total=total, completed=done)


def _lines() -> Callable[[int, int | None, str], None]:
    said: dict[int | None, int] = {}

    def tell(done: int, total: int | None, what: str) -> None:
        tenth = 10 * done // (total or 1)
        if total and tenth > said.get(total, 0):
            said[total] = tenth
            note(f"{done}/{total}  {what}")

    return tell
