"""``woodshed worker``: one more process that takes attempts of shared runs."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer
import uvloop

from woodshed import settings
from woodshed.cli.output import Json, emit_json, note, out
from woodshed.errors import UsageError, WoodshedError
from woodshed.model.counted import counted
from woodshed.sandbox.native.places import sweep
from woodshed.services import working
from woodshed.services.home import opened
from woodshed.services.shared import pool_name
from woodshed.store.queue import Lane

Slots = Annotated[str, typer.Option(metavar="N|auto", help="Attempts at a time; auto: as many as the machine carries.")]
UntilEmpty = Annotated[bool, typer.Option("--until-empty", help="End when no run has anything left to do.")]
Pool = Annotated[str, typer.Option(metavar="NAME", help="Take runs of this pool alone (default: those without one).")]
LaneOf = Annotated[Lane, typer.Option(help="quarantine: only what may have killed its workers, one at a time.")]


def worker(
    slots: Slots = "auto", until_empty: UntilEmpty = False, pool: Pool = "", lane: LaneOf = Lane.MAIN,
    json: Json = False,
) -> None:  # fmt: skip
    """Execute attempts of runs started with 'run --detach'. SIGTERM drains, a second one stops. Exit 0 at the end."""
    terms = working.Terms(slots=slots_of(slots), pool=pool_name(pool), lane=lane, until_empty=until_empty,
                          aside=aside(pool) if lane is Lane.MAIN else (), sweep=partial(sweep, settings.home()))
    started = time.perf_counter()
    with opened() as home, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        worked = runner.run(working.work(home, terms, note))
    told: dict[str, Any] = {**asdict(worked), "invalid": dict(worked.invalid),  # asdict spoils a Counter
                            "elapsed_s": round(time.perf_counter() - started, 3)}
    if json:
        emit_json(told)
    else:
        broken = "".join(f", {count} {cause}" for cause, count in sorted(worked.invalid.items()))
        valid = f": {worked.valid} valid, {worked.passed} passed{broken}" if worked.done else ""
        ended = "nothing is left to do" if worked.ended == "empty" else worked.ended
        out.print(f"{counted(worked.done, 'attempt')}{valid}; {ended}")
    if worked.ended == "reaped":
        raise WoodshedError("this worker was taken for dead; start another")


def slots_of(text: str) -> int | None:
    """The number that ``--slots`` says; None for auto. Raises UsageError."""
    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= working.CEILING:
        raise UsageError(f"{text!r} is no number of slots", field="--slots",
                         remedy=f"Say auto, or a number from 1 to {working.CEILING}.")
    return int(text)


def aside(pool: str) -> list[str]:
    """The command of a process in which a poisonous attempt takes no neighbour with it."""
    return [sys.executable, "-m", "woodshed", "worker", "--slots", "1", "--until-empty", "--pool", pool,
            "--lane", Lane.QUARANTINE.value]
