"""Drives a run from the command line: a live bar, an end by Ctrl-C that loses nothing, and the word how to go on."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import uvloop

from woodshed.cli.output import err, note
from woodshed.errors import Cancelled, UsageError, WoodshedError
from woodshed.model import Run
from woodshed.services import runs
from woodshed.services.runs import Tally

Done = TypeVar("Done")


def driven(work: Callable[[runs.Progress], Coroutine[Any, Any, Run]], *, resume: str) -> Run:
    """The finished run. ``resume`` is the command that goes on with an interrupted one, up to the run's id."""
    ours = [""]

    def remedy() -> str:
        return f"Resume with: {resume} {ours[0]}" if ours[0] else "It had not begun."

    try:
        # uvloop: a tenth more attempts a second than asyncio's own loop, measured on bare Python scripts.
        with bar() as progress, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(interruptible(work(_naming(progress, ours))))
    except (KeyboardInterrupt, asyncio.CancelledError):
        err.print(f"interrupted; nothing is lost. {remedy()}")
        raise SystemExit(130) from None
    except WoodshedError as error:
        if isinstance(error, Cancelled):
            err.print(f"what was recorded is kept: woodshed show {ours[0]}")
        elif ours[0] and not isinstance(error, UsageError):
            err.print(f"what was recorded is kept. {remedy()}")
        raise


def _naming(progress: runs.Progress, ours: list[str]) -> runs.Progress:
    """Progress that also notes which run it is, so that an interruption can name it."""

    def heard(tally: Tally) -> None:
        ours[0] = tally.run
        progress(tally)

    return heard


async def interruptible(work: Coroutine[Any, Any, Done]) -> Done:
    """Ctrl-C and SIGTERM cancel the work, so that everything live is closed before we leave."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, task.cancel)
    return await task


@contextmanager
def bar() -> Iterator[runs.Progress]:
    """A live bar on a terminal; elsewhere a line on standard error at every tenth of the way."""
    if not err.is_terminal:
        yield Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=err) as bar:
        task = bar.add_task("", total=None, state="")
        started, first = time.perf_counter(), [0]

        def show(tally: Tally) -> None:
            if bar.tasks[0].total is None:
                first[0] = tally.done
            rate = (tally.done - first[0]) / max(time.perf_counter() - started, 1e-6)
            bar.update(task, total=tally.total, completed=tally.done, state=f"{describe(tally)}  {rate:.1f}/s")

        yield show


@dataclass(slots=True)
class Lines:
    """Progress without a terminal: one line at every tenth of the way."""

    tenth: int = 0
    total: int = 0

    def __call__(self, tally: Tally) -> None:
        """Print when another tenth is done; of a run that grows, of the whole that is planned by then."""
        now = 10 * tally.done // max(tally.total, 1)
        if tally.total != self.total:
            self.total, self.tenth = tally.total, min(self.tenth, now)
        if now > self.tenth:
            self.tenth = now
            note(f"{tally.done}/{tally.total}  {describe(tally)}")


def describe(tally: Tally) -> str:
    """One line of a tally: valid, passed, failed, invalid by cause."""
    broken = ", ".join(f"{count} {cause}" for cause, count in sorted(tally.invalid.items()))
    told = f"valid {tally.valid}  passed {tally.passed}  failed {tally.failed}"
    return f"{told}  invalid {broken}" if broken else told
