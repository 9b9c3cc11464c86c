"""``woodshed scale``: as many workers as the queue of a pool wants."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from typing import Annotated

import typer
import uvloop

from woodshed.cli.output import Json, emit_json, note, out
from woodshed.cli.worker import slots_of
from woodshed.engine.capacity import cores
from woodshed.engine.scaling import Bounds
from woodshed.errors import UsageError
from woodshed.model.counted import counted
from woodshed.services import durations, providers, scaling
from woodshed.services.home import opened
from woodshed.services.shared import pool_name


class Kind(StrEnum):
    """Who brings workers about."""

    LOCAL = "local"
    COMMAND = "command"


Which = Annotated[Kind, typer.Option("--provider", help="local: processes on this machine; command: see --command.")]
Run = Annotated[str, typer.Option("--command", metavar="COMMAND", help="Scales to {wanted}; no shell reads it.")]
Least = Annotated[int, typer.Option("--min", min=0, help="Workers at least.")]
Most = Annotated[int, typer.Option("--max", min=1, max=100_000, help="Workers at most.")]
Target = Annotated[str, typer.Option("--drain-target", metavar="TIME", help="What waits is to be done in this time.")]
Cool = Annotated[str, typer.Option("--cool-down", metavar="TIME", help="Fewer workers no sooner after a change.")]
Interval = Annotated[float, typer.Option(min=0.1, max=3600, metavar="SECONDS", help="Between two looks at the queue.")]
Pool = Annotated[str, typer.Option(metavar="NAME", help="The pool that is scaled (default: those without a name).")]
Slots = Annotated[str, typer.Option(metavar="N|auto", help="Of each worker: told to local ones, assumed of others.")]
Patience = Annotated[str, typer.Option("--command-timeout", metavar="TIME", help="What the command may take.")]
Passed = Annotated[list[str] | None, typer.Option("--pass", metavar="VARIABLE", help="Secret it may see; repeatable.")]
Drains = Annotated[bool, typer.Option("--drain", help="Ask surplus workers through the queue to drain.")]
UntilEmpty = Annotated[bool, typer.Option("--until-empty", help="End when nothing is left to do, and nobody.")]


def scale(
    provider: Which = Kind.LOCAL, command: Run = "", least: Least = 0, most: Most = 1, drain_target: Target = "10m",
    cool_down: Cool = "60s", interval: Interval = 5.0, pool: Pool = "", slots: Slots = "auto",
    command_timeout: Patience = "60s", passed: Passed = None, drain: Drains = False, until_empty: UntilEmpty = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Start and drain workers as their queue wants. SIGTERM ends it, once what it started here has drained."""
    if least > most:
        raise UsageError(f"--min {least} is more than --max {most}", field="--min", remedy="Raise --max.")
    if (provider is Kind.COMMAND) != bool(command):
        raise UsageError("--command is for --provider command, which needs one", field="--command",
                         remedy="Say: --provider command --command 'kubectl scale … --replicas={wanted}'")
    assumed = float(slots_of(slots) or cores())
    terms = scaling.Terms(
        pool=pool_name(pool), interval_s=interval, until_empty=until_empty, drains=drain,
        bounds=Bounds(least, most, durations.seconds(drain_target, "--drain-target"),
                      durations.seconds(cool_down, "--cool-down")),
    )
    chosen: scaling.Provider
    if provider is Kind.LOCAL:
        chosen = providers.Local(_worker(slots, pool), slots=assumed, tell=note)
    else:
        chosen = providers.Command(command, pool=pool, slots=assumed, passed=passed or (),
                                   timeout_s=durations.seconds(command_timeout, "--command-timeout"))
    with opened() as home, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        scaled = runner.run(scaling.scale(home, terms, chosen, note))
    if json:
        emit_json(scaled.to_json())
    else:
        failures = counted(scaled.failures, "failure")
        out.print(f"{scaled.ended}; at most {counted(scaled.most, 'worker')}, {failures} of the provider")


def _worker(slots: str, pool: str) -> list[str]:
    """The command of one worker."""
    return [sys.executable, "-m", "woodshed", "worker", "--slots", slots, *(("--pool", pool) if pool else ())]
