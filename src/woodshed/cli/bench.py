"""``woodshed bench``: the published measurements, reproducible."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from woodshed.cli.output import Json, emit_json, note, number, out, plain, table
from woodshed.errors import UsageError
from woodshed.services import measured, overhead

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Options of every measurement."""


@app.command("run")
def run(
    tasks: Annotated[list[Path], typer.Argument(help="Task folders with references, e.g. an imported HumanEvalFix.")],
    attempts: Annotated[int, typer.Option("-n", "--attempts", min=1, help="Attempts of each task.")] = 2,
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", min=1, help="Attempts at a time, bare too.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds; the ratio is their median.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the runs.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Also write the figures to this file.")] = None,
    json: Json = False,
) -> None:
    """The same oracle attempts through Woodshed and bare: attempts a second, their ratio, CPU of an attempt."""
    figures = overhead.measure(
        tasks, attempts=attempts, concurrency=concurrency, rounds=rounds, seed=seed, told=note
    )
    if save is not None:
        measured.publish(figures, save)
    if json:
        emit_json(figures)
        return
    table(
        ("", "#attempts/s", "#busy CPU ms an attempt"),
        (
            ("bare", f"{figures['bare_per_s']:.1f}", f"{figures['cpu_ms_per_attempt']['bare']:.1f}"),
            ("woodshed", f"{figures['woodshed_per_s']:.1f}", f"{figures['cpu_ms_per_attempt']['woodshed']:.1f}"),
        ),
        title=f"{figures['attempts']} attempts, {figures['concurrency']} at a time",
    )
    stages = {k: v for k, v in figures["cpu_ms_per_attempt"].items() if k.startswith("own_")}
    out.print("our own process, CPU ms by stage: " + "  ".join(f"{k[4:]} {v:.1f}" for k, v in stages.items()))
    out.print(f"ratio {figures['ratio']:.2f} (rounds: {', '.join(map(str, figures['ratios']))})")


@app.command("plan")
def plan(
    tasks: Annotated[list[Path], typer.Argument(help="Task folders with references.")],
    attempts: Annotated[int, typer.Option("-n", "--attempts", min=1, help="Of the real run, in all.")] = 1000,
    pilot: Annotated[int, typer.Option(min=1, help="Attempts that it is foretold by, in all.")] = 40,
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", min=1, help="Attempts at a time.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Each with its own pilot; figures are their medians.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the runs and of the simulations.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Also write the figures to this file.")] = None,
    json: Json = False,
) -> None:
    """A real run, and what 'woodshed plan' foretold of it by a pilot: the makespan, and how far off it was."""
    from woodshed.services.benching import plan as plans

    figures = plans.measure(
        tasks, attempts=attempts, pilot=pilot, concurrency=concurrency, rounds=rounds, seed=seed, told=note
    )
    if save is not None:
        measured.publish(figures, save)
    if json:
        emit_json(figures)
        return
    table(("#foretold", "#9 of 10", "#took", "#off by"), [
        (f"{one['foretold_p50_s']:.1f} s", f"{one['foretold_p90_s']:.1f} s", f"{one['took_s']:.1f} s",
         f"{100 * one['off']:+.1f} %") for one in figures["samples"]
    ], title=f"{figures['attempts']} attempts by a pilot of {figures['pilot']}, {concurrency} at a time")  # fmt: skip
    out.print(f"off by {figures['off_percent']:.1f} % (median); the aim is {100 * figures['aim']:.0f} %")


@app.command("sandbox")
def sandbox(
    samples: Annotated[int, typer.Option(min=1, help="Of each measure; podman gives half as many.")] = 60,
    idle: Annotated[int, typer.Option(min=0, help="Idle sandboxes that are weighed; 0 leaves that out.")] = 1000,
    churn: Annotated[int, typer.Option(min=0, help="Cycles of create, true, close on two workers; 0: none.")] = 5000,
    engine: Annotated[str, typer.Option(help="The engine to measure.")] = "native",
    egress: Annotated[
        bool, typer.Option("--egress", help="Also what a network by policy costs, and weighs for 500 (or --idle).")
    ] = False,
    yardstick: Annotated[
        list[str] | None, typer.Option(help="Compare with this alone: raw, bwrap, crun, runc, podman. Repeatable.")
    ] = None,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to spend, in all, on waiting for quiet.")] = 120.0,
    seed: Annotated[int, typer.Option(help="Of the order of measures in each round.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Also write the figures to this file.")] = None,
    json: Json = False,
) -> None:
    """What sandboxes cost, beside the yardsticks found here: raw C, bubblewrap, crun, runc, podman.

    Exits with 1 where a process, mount, cgroup or directory of a sandbox is left.
    """
    import uvloop  # as what it measures, loaded for this command alone

    from woodshed.services.benching import sandbox as sandboxes

    size = sandboxes.Size(
        samples=samples, idle=idle, churn=churn, patience_s=patience, egress=min(idle, 500) if egress else None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(
            sandboxes.measure(size, engine=engine, seed=seed, told=note, yardsticks=sandboxes.chosen(yardstick))
        )
    if save is not None:
        measured.publish(figures, save)
    if json:
        emit_json(figures)
    else:
        _sandbox_tables(figures)
    if figures["left"]:
        raise typer.Exit(1)


def _sandbox_tables(figures: dict[str, Any]) -> None:
    columns = {"create_exec_destroy_ms": "create, true, destroy", "exec_ms": "exec", "warm_claim_ms": "warm claim",
               "snapshot_ms": "snapshot", "fork_ms": "fork"}
    rows = [
        (name, *(f"{cell['p50']:.2f} / {cell['p95']:.2f}" if (cell := row[key]) else "–" for key in columns),
         max((str(row[key]["n"]) for key in columns if row[key]), key=int, default="–"))
        for name, row in figures["engines"].items()
    ]
    table(("milliseconds, p50 / p95", *(f"#{title}" for title in columns.values()), "#n"), rows)
    if not all(cell["quiet"] for row in figures["engines"].values() for key in columns if (cell := row[key])):
        out.print(f"not every burst began on a quiet machine (load {figures['load'][0]}, then {figures['load'][1]})")
    for name, reason in figures["not_found"].items():
        out.print(f"{name}: {plain(reason)}")
    phases = figures["phases_ms"].get(figures["engine"], {})
    parts = (f"{name} {cell['p50']:.2f} / {cell['p95']:.2f}" for name, cell in phases.items())
    out.print("a cycle, ms: " + "  ".join(parts))
    if idle := figures["idle"]:
        each = number(idle["idle_mb"], lambda v: f"{v:.2f}")
        out.print(f"{idle['n']} idle: {each} MiB each ({idle['method']}; by MemAvailable "
                  f"{idle['available_mb']:.2f}), made at {idle['create_per_s']:.0f}/s")
    if churn := figures["churn"]:
        cpu = churn["cpu_ms"]
        out.print(f"churn: {churn['churn_per_s']:.0f} cycles/s on {churn['workers']} workers, CPU ms a cycle: own "
                  f"{cpu['own']:.2f}, machine {cpu['machine']:.2f}")
    if network := figures["egress"]:
        added = network["added_ms"]
        out.print(f"egress: {added['create']:+.2f} ms to create, {added['request']:+.2f} ms to a request"
                  + (f"; {many['n']} fetching at once: {many['process_mb']:.0f} MiB in all, {many['grown_mb']:+.0f}"
                     if (many := network["many"]) else ""))
    out.print(f"left: {', '.join(map(plain, figures['left'])) or 'nothing'}")
    _targets_table(figures["targets"])


@app.command("queue")
def queue(
    attempts: Annotated[int, typer.Option("-n", "--attempts", min=30, help="Empty attempts of a round.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the rate is their median.")] = 3,
    slots: Annotated[int, typer.Option(min=1, help="Attempts of a worker at a time.")] = 8,
    waiting: Annotated[int, typer.Option(min=0, help="Attempts that wait 0.5 s, for two workers against one.")] = 160,
    queued: Annotated[int, typer.Option(min=0, help="Attempts in the queue whose weight is told; 0: not.")] = 10_000,
    database: Annotated[
        list[str] | None, typer.Option(help="sqlite, postgresql (a server of its own). Repeatable (default: both).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Stands in the figures.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Also write the figures to this file.")] = None,
    json: Json = False,
) -> None:
    """What leaving attempts to workers costs: empty ones a second, CPU of each, two workers against one, memory."""
    from woodshed.services.benching import queue as queues

    chosen = database or ["sqlite", "postgresql"]
    if unknown := set(chosen) - {"sqlite", "postgresql"}:
        raise UsageError(f"no database we measure: {', '.join(sorted(unknown))}", field="--database",
                         remedy="Say sqlite or postgresql.")
    size = queues.Size(attempts=attempts, rounds=rounds, slots=slots, waiting=waiting, queued=queued)
    figures = queues.measure(size, databases=chosen, seed=seed, told=note)
    if save is not None:
        measured.publish(figures, save)
    if json:
        emit_json(figures)
        return
    table(("", "#attempts/s", "#CPU ms: all", "#worker", "#server", "#worker's peak MB"), [
        (name, f"{row['per_s']:.1f}", *(f"{row['cpu_ms_per_attempt'][key]:.1f}" for key in ("all", "worker", "server")),
         f"{row['worker_peak_mb']:.0f}") for name, row in figures["databases"].items()])
    for name, row in figures["databases"].items():
        if two := row.get("two_workers"):
            out.print(f"{name}: two workers do {two['ratio']:.2f} times one's attempts that wait {two['wait_s']} s, "
                      f"and {two['empty_per_s']:.1f} empty ones a second")
        if weight := row.get("queued"):
            out.print(f"{name}: with {weight['n']} queued a worker weighs {weight['worker_mb']:.0f} MB")


@app.command("thousand")
def thousand(
    tasks: Annotated[int, typer.Option(min=1, help="Small tasks, made on the spot.")] = 100,
    attempts: Annotated[int, typer.Option("-n", "--attempts", min=1, help="Of each task, by reference and model.")] = 5,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes; the first is never killed.")] = 2,
    slots: Annotated[int, typer.Option(min=1, help="Attempts of a worker at a time.")] = 4,
    faults: Annotated[float, typer.Option(min=0, max=1, help="Share of sandboxes, verdicts, answers.")] = 0.05,
    kills: Annotated[int, typer.Option(min=0, help="Workers killed on the way.")] = 10,
    database: Annotated[str, typer.Option(help="sqlite, or postgresql: a server of its own.")] = "sqlite",
    seed: Annotated[int, typer.Option(help="Of the faults.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Also write the figures to this file.")] = None,
    json: Json = False,
) -> None:
    """A thousand attempts amid refusals, hangs and killed workers: all accounted for, none falsely zero, nothing left.

    Exits with 1 where that does not hold.
    """
    from woodshed.services.benching import thousand as scene

    size = scene.Size(tasks=tasks, attempts=attempts, workers=workers, slots=slots, faults=faults, kills=kills)
    figures = scene.measure(size, database=database, seed=seed, told=note)
    if save is not None:
        measured.publish(figures, save)
    if json:
        emit_json(figures)
    else:
        keys = ("attempts", "accounted", "valid_rate", "false_zeros", "executions", "lost_executions", "killed_workers",
                "elapsed_s")
        table(("", "#"), [(key, str(figures[key])) for key in keys])
        memory = figures["memory_mb"]
        out.print(f"memory: {memory['most']} MB at most, {memory['mb_per_thousand']} MB more each thousand attempts")
        out.print(f"faults: {figures['faults']}; left: {', '.join(map(plain, figures['left'])) or 'nothing'}")
    if figures["left"] or figures["false_zeros"] or figures["accounted"] != figures["attempts"]:
        raise typer.Exit(1)


@app.command("gateway")
def gateway(
    samples: Annotated[int, typer.Option(min=1, help="Requests one after another, in each round.")] = 100,
    requests: Annotated[int, typer.Option(min=1, help="Requests under load, in each round.")] = 4000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; figures are their medians.")] = 5,
    lanes: Annotated[int, typer.Option(min=1, help="Attempts that ask at once, under load.")] = 64,
    streams: Annotated[int, typer.Option(min=0, help="Slow streams at once whose memory is weighed; 0: none.")] = 2000,
    litellm: Annotated[
        str | None, typer.Option(help="A Python that has LiteLLM's proxy, or 'install'. Left out: no ratio to it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the order of subjects in each round.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Also write the figures to this file.")] = None,
    json: Json = False,
) -> None:
    """What the gateway adds to a model call, its row durable before the answer: beside a bare proxy and LiteLLM's.

    Exits with 1 where an answer was given whose row is not in the store.
    """
    from woodshed.services.benching import gateway as gateways

    size = gateways.Size(samples=samples, rounds=rounds, requests=requests, lanes=lanes, streams=streams)
    figures = gateways.measure(size, python=litellm, seed=seed, told=note)
    if save is not None:
        measured.publish(figures, save)
    if json:
        emit_json(figures)
    else:
        _gateway_tables(figures)
    if figures["durable"]["rows"] < figures["durable"]["answered"]:
        raise typer.Exit(1)


def _gateway_tables(figures: dict[str, Any]) -> None:
    load = figures["under_load"]
    table(("", "#p50 ms", "#p95 ms", "#requests/s, one core", "#CPU ms each"), [
        (name, f"{row['p50']:.2f}", f"{row['p95']:.2f}",
         *((f"{load[name]['requests_per_s']:.0f}", f"{load[name]['cpu_ms']:.2f}") if name in load else ("–", "–")))
        for name, row in figures["latency_ms"].items()
    ])  # fmt: skip
    if figures["not_found"]:
        out.print(f"LiteLLM: {plain(figures['not_found'])}")
    durable = figures["durable"]
    out.print(f"the gateway answered {durable['answered']} requests; rows in the store after it was killed: "
              f"{durable['rows']}")
    if streams := figures["streams"]:
        out.print(f"{streams['n']} slow streams: {streams['process_mb']:.0f} MiB in all, {streams['grown_mb']:+.0f}")
    _targets_table(figures["targets"])


def _targets_table(targets: list[dict[str, Any]]) -> None:
    marks = {True: "met", False: "missed", None: "not measured"}
    table(("target", "#value", "#bound", ""), [
        (row["name"], number(row["value"], lambda v: f"{v:.3f}"),
         f"≤ {row['at_most']:g}" if "at_most" in row else f"≥ {row['at_least']:g}", marks[row["met"]])
        for row in targets
    ])  # fmt: skip
