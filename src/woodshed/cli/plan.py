"""``woodshed plan``: how long a run will take, on how many machines, and what it costs, before it is paid for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from woodshed.cli.driving import driven
from woodshed.cli.options import KeyVariable
from woodshed.cli.output import Json, emit_json, err, note, number, out, percent, plain, table
from woodshed.engine.capacity import cores as cores_here
from woodshed.errors import UsageError
from woodshed.measure.simulation import Limits
from woodshed.model import Agent, Sampling
from woodshed.model.counted import counted
from woodshed.model.retry import RetryRules
from woodshed.services import agents as agent_service
from woodshed.services import boxes, declared, durations, planning
from woodshed.services.durations import spoken
from woodshed.services.home import Home, opened
from woodshed.services.planning import Crowd, Question
from woodshed.services.recorded import Recorded
from woodshed.tasks.load import find_tasks

OFFERED = 20
"""Attempts of the pilot that is offered."""
Tasks = Annotated[list[Path], typer.Argument(help="Task folders, or folders of them.", show_default=False)]
Attempts = Annotated[int, typer.Option("-n", "--attempts", min=1, help="Attempts of each task by each agent.")]
Workers = Annotated[str, typer.Option(metavar="W[xSLOTS]", help="Workers, and slots of each (default: its cores).")]
PriceBook = Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file of prices; docs/planning.md.")]
From = Annotated[list[str] | None, typer.Option(
    "--from", metavar="RUN", help="Runs to learn from; 'last' is the newest (default: all).")]
Pilot = Annotated[int, typer.Option(min=0, metavar="N", help="First run about N attempts here, and learn from them.")]
Agents = Annotated[list[str] | None, typer.Option("--agent", "-a", help="As for run; repeatable (default: --from's).")]
Model = Annotated[str | None, typer.Option(help="local, local:NAME, FILE.gguf, or NAME@URL.")]
Retry = Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file of retry rules; docs/retries.md.")]
Cores = Annotated[float | None, typer.Option(min=0.1, help="Processors of a worker (default: as many as here).")]
Places = Annotated[int | None, typer.Option("--endpoint-slots", min=1, help="Attempts that the model serves at once.")]
Rate = Annotated[float | None, typer.Option("--endpoint-per-minute", min=0.001, help="Attempts begun in a minute.")]
Within = Annotated[str | None, typer.Option(metavar="TIME", help="Also tell how many workers make it in 30m, 2h, 1d.")]
Rounds = Annotated[int, typer.Option(min=2, max=1000, help="Simulations that quantiles are taken of.")]
Seed = Annotated[int, typer.Option(help="Of the simulations, and of a pilot.")]
Engine = Annotated[str | None, typer.Option(help="Sandbox engine of a pilot (default: WOODSHED_ENGINE or native).")]


def plan(
    tasks: Tasks, attempts: Attempts = 1, workers: Workers = "1", price_book: PriceBook = None, from_runs: From = None,
    pilot: Pilot = 0, agent: Agents = None, model: Model = None, model_key: KeyVariable = None, retry: Retry = None,
    cores: Cores = None, endpoint_slots: Places = None, endpoint_per_minute: Rate = None, within: Within = None,
    rounds: Rounds = 30, seed: Seed = 0, engine: Engine = None, json: Json = False,
) -> None:  # fmt: skip
    """Simulate a run from what is recorded of its tasks: time, slots, cost, bottleneck. Starts nothing but a pilot."""
    machine = cores if cores is not None else float(cores_here())
    count, slots = planning.parse_workers(workers, max(1, int(machine)))
    book = planning.load_prices(price_book) if price_book else None
    with opened() as home:
        chosen = _agents(home, agent, model, model_key, from_runs)
        if book is not None and price_book is not None:
            planning.check_prices(book, chosen, price_book)
        question = Question(
            tasks=find_tasks(list(tasks)), agents=chosen, attempts=attempts, crowd=Crowd(count, slots, machine),
            rules=declared.load_retry(retry) if retry else RetryRules(), book=book,
            limits=Limits(places=endpoint_slots, per_minute=endpoint_per_minute),
            within_s=durations.seconds(within, "--within") if within else None, seed=seed, rounds=rounds,
        )
        answer = planning.told(question, _evidence(home, question, from_runs or [], pilot, engine, json))
    if json:
        emit_json(answer)
    else:
        _print(answer)


def _agents(
    home: Home, names: list[str] | None, model: str | None, key: str | None, from_runs: list[str] | None
) -> tuple[Agent, ...]:
    if not names:
        if not from_runs:
            raise UsageError("whose attempts?", field="--agent", remedy="Add --agent oracle, or --from RUN.")
        return planning.agents_of(home, from_runs)
    chosen = agent_service.parse_model(model, sampling=Sampling(), key_variable=key) if model else None
    return agent_service.build(names, chosen)


def _evidence(
    home: Home, question: Question, names: list[str], pilot: int, engine: str | None, json: bool
) -> Recorded:
    """What is recorded, after a pilot where one is asked for, or offered and wanted."""
    count = pilot or _offered(planning.evidence(home, question, names), question, json)
    if count:
        spec, found = planning.pilot_spec(question, count, engine=boxes.engine_of(None, engine))
        made = driven(lambda progress: planning.pilot(home, spec, found, progress), resume="woodshed run --resume")
        note(f"the pilot is {made.id}")
        names = [*names, made.id] if names else []
    return planning.evidence(home, question, names)


def _offered(found: Recorded, question: Question, json: bool) -> int:
    """On a terminal, where little is recorded: as many attempts as the user agrees to try first."""
    missing = len(found.unmeasured(question.pairs))
    if json or not (sys.stdin.isatty() and err.is_terminal) or (found.executions >= planning.THIN and not missing):
        return 0
    least = max(OFFERED, missing)
    none = f", none of {missing} of them" if missing else ""
    note(f"recorded of these tasks: {counted(found.executions, 'execution')}{none}")
    return least if typer.confirm(f"Run {counted(least, 'attempt')} here first?", default=False, err=True) else 0


def _print(answer: dict[str, Any]) -> None:
    cost = answer["cost"]
    agents = ", ".join(map(plain, answer["agents"]))
    title = (f"{counted(answer['attempts'], 'attempt')} of {counted(answer['tasks'], 'task')} by {agents} on "
             f"{counted(answer['workers'], 'worker')}, {counted(answer['slots'], 'slot')}")
    table(("", "#expected", "#at most, 9 of 10"), _rows(answer), title=title)
    if cost is not None:
        table(("cost", "#quantity", "unit", f"#{cost['currency']}"), [
            (line["what"], f"{line['quantity']:,.2f}".rstrip("0").rstrip("."), line["unit"], _money(line["micros"]))
            for line in cost["lines"]
        ])
    table(("#workers", "#slots", "#p50", "#p90", "#slots in use", "bottleneck", *(("#cost",) if cost else ())), [
        (str(row["workers"]), str(row["slots"]), spoken(row["makespan_p50_s"]), spoken(row["makespan_p90_s"]),
         percent(row["slots_used"]), row["bottleneck"], *((_money(row["micros"]),) if cost else ()))
        for row in answer["around"]
    ])
    out.print(f"bottleneck: {_bottleneck(answer)}")
    if (needed := answer["needed"]) is not None:
        many = "no number of workers is enough" if needed["workers"] is None else \
            f"{counted(needed['workers'], 'worker')} ({counted(needed['slots'], 'slot')})"
        out.print(f"within {spoken(needed['within_s'])}, 9 times of 10: {many}")
    _print_evidence(answer["evidence"])
    for warning in answer["warnings"]:
        err.print(f"[yellow]beware:[/] {plain(warning)}")


def _print_evidence(evidence: dict[str, Any]) -> None:
    seen = f"{counted(evidence['executions'], 'execution')} of {counted(len(evidence['runs']), 'run')}"
    claim = f"To say at most {percent(evidence['claimed'])} takes {evidence['pilots_for_claim']} executions without one"
    out.print(f"evidence: {seen}, {evidence['broken']} broken: at most {percent(evidence['broken_at_most'])} break, "
              f"with 95 % confidence. {claim}")
    if evidence["worker_memory_mb"]:
        each, worker = evidence["memory_p90_mb"], evidence["worker_memory_mb"]
        out.print(f"memory: {each:.0f} MB an attempt (9 of 10), {worker:.0f} MB a worker")


def _rows(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    expected, cost = answer["forecast"], answer["cost"]
    rows = [
        ("time", spoken(expected["makespan_p50_s"]), spoken(expected["makespan_p90_s"])),
        ("slots in use", percent(expected["slots_used"]), ""),
        ("slot-hours", f"{expected['slot_hours']:.2f}", ""),
        ("added by retries", f"{spoken(expected['added_by_retries_s'])}, {expected['retries']:.1f} executions", ""),
    ]
    if expected["prompt_tokens"] or expected["completion_tokens"]:
        rows.append(("tokens", f"{expected['prompt_tokens']:,} + {expected['completion_tokens']:,}", ""))
    if cost is not None:
        rows.append((f"cost, {cost['currency']}", _money(cost["micros_p50"]), _money(cost["micros_p90"])))
    return rows


def _bottleneck(answer: dict[str, Any]) -> str:
    """What a faster run needs more of, and what its time goes into."""
    shares = [f"{name} {percent(share)}" for name, share in answer["stages"].items() if share >= 0.01]
    used = answer["forecast"]["use"].get(answer["forecast"]["bottleneck"])
    known = f"{answer['forecast']['bottleneck']}" + (f" ({percent(min(1.0, used))} in use)" if used else "")
    return f"{known}; an attempt is {', '.join(shares)}" if shares else known


def _money(micros: int | None) -> str:
    """Whole cents, or more digits of what is less than one."""
    if micros is None:
        return number(None)
    return f"{micros / 1_000_000:,.2f}" if micros >= 10_000 or not micros else f"{micros / 1_000_000:.6f}"
