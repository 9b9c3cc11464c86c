"""``woodshed show`` and ``woodshed trace``: what a run came to, and what one attempt did."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.syntax import Syntax

from woodshed.cli.options import Prices
from woodshed.cli.output import Json, emit_json, number, out, plain, table, visible
from woodshed.cli.run import print_summary
from woodshed.services import naming, planning, projects, report, sending
from woodshed.services.home import opened


def show(
    run: Annotated[str | None, typer.Argument(help="A run's id, or 'last'. Without it: all runs.")] = None,
    project: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this project.")] = None,
    price_book: Prices = None,
    json: Json = False,
) -> None:
    """A run's closing table and each of its attempts; or the list of runs."""
    prices = planning.load_prices(price_book) if price_book else None
    with opened() as home:
        if run is None:
            _list(report.listing(home, None if project is None else projects.existing(home, project)), json)
            return
        found = naming.run(home, run, project)
        summary = report.summary(home, found, prices=prices)
        rows = report.attempts(home, found)
        stands = sending.status_of(home, found)
    if json:
        emit_json({**summary, "status": stands.to_json() if stands else None, "results": rows})
        return
    at_work = {one.attempt: f"{one.stage}, turn {one.turn}" for one in (stands.at_work if stands else ())}
    print_summary(summary, None)
    graded = any(row["valid"] and row["total"] != float(row["passed"]) for row in rows)
    table(
        ("attempt", "agent", "task", "verdict", *(("#total",) if graded else ()), "stop", "flags", "#seconds"),
        (
            (
                row["attempt"], row["agent"], row["task"], at_work.get(row["attempt"]) or _verdict(row),
                *((number(row["total"], lambda v: f"{v:.3f}"),) if graded else ()), row["stop"] or "–",
                " ".join(row["flags"]), number(row["seconds"]),
            )
            for row in rows
        ),
    )


def trace(
    attempt: Annotated[str, typer.Argument(help="An attempt's id, or 'last'.")],
    json: Json = False,
) -> None:
    """The steps of one attempt: messages, commands with exit codes, the diff, the verdict."""
    with opened() as home:
        told = report.trace(home, attempt)
    if json:
        emit_json(told)
    else:
        _print_trace(told)


def _list(rows: list[dict[str, Any]], json: bool) -> None:
    if json:
        emit_json({"runs": rows})
        return
    table(
        ("run", "project", "state", "agents", "#tasks", "#attempts", "#done", "created"),
        (
            (
                row["run"], row["project"], _state(row), ", ".join(row["agents"]), str(row["tasks"]),
                str(row["attempts"]), str(row["done"]), row["created_at"],
            )
            for row in rows
        ),
    )  # fmt: skip


def _state(row: dict[str, Any]) -> str:
    return f"{row['state']}: {row['reason']}" if row["reason"] else str(row["state"])


def _verdict(row: dict[str, Any]) -> str:
    if row["valid"] is None:
        left = "cut off" if row["executions"] else "not begun"
        return left if row["cut_off"] else str(row["state"])
    if not row["valid"]:
        return f"invalid: {row['cause']}"
    return "passed" if row["passed"] else f"failed: {row['cause'] or 'agent'}"


def _print_trace(told: dict[str, Any]) -> None:
    who = f"{plain(told['task'])}  {plain(told['agent'])}  execution {told['execution']}"
    out.print(f"[bold]{told['attempt']}[/]  {who}")
    done = 0
    for step in told["steps"]:
        own = step["source"] == "agent" and step["parent"] is None
        done += own
        marks = [f"step {done}"] * own + ["inherited"] * step["inherited"]
        out.print(f"\n[bold cyan]{step['index']} {step['source']}[/]" + (f" ({', '.join(marks)})" if marks else ""))
        if step["reasoning"]:
            out.print(f"thought: {plain(step['reasoning'].rstrip())}", style="dim")
        if step["message"]:
            out.print(plain(step["message"].rstrip()))
        answers = {o["call"]: o for o in step["observations"]}
        for call in step["tool_calls"]:
            out.print(f"[yellow]▸ {plain(call['name'])}:[/] {plain(report.arguments(call))}")
            answer = answers.get(call["id"])
            if answer is None:
                out.print("  interrupted", style="red")
                continue
            marks = [f"exit {answer['exit_code']}"] if answer["exit_code"] is not None else []
            marks += [mark for mark in ("truncated", "timed_out") if answer[mark]]
            if answer["content"].strip():
                out.print(plain(answer["content"].rstrip()), style="dim")
            if marks:
                out.print("  " + " · ".join(marks), style="dim italic")
    if told["diff"]:
        out.print("\n[bold]changes[/]")
        out.print(Syntax(visible(told["diff"]), "diff", background_color="default"))
    for line in told["refused"]:
        out.print(f"not captured: {plain(line)}", style="yellow")
    for line in told["flagged"]:
        out.print(f"a tool may run it by itself: {plain(line)}", style="yellow")
    out.print(f"\n[bold]verdict[/] {plain(report.sentence_of(told))}")
    stages = "  ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in told["stages_s"].items())
    out.print(f"stop: {told['stop'] or '–'}   {stages}", style="dim")
