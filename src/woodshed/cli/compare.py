"""``woodshed compare``: several agents on the same tasks, with paired statistics and a warning where it is noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from woodshed.cli.driving import driven
from woodshed.cli.measures import bar, share
from woodshed.cli.options import Engine, KeyVariable, MaxTokens, Prices, Temperature
from woodshed.cli.output import Json, emit_json, note, number, out, percent, plain, table
from woodshed.errors import UsageError
from woodshed.model import AgentLimits, Sampling
from woodshed.services import agents as agent_service
from woodshed.services import boxes, comparing, planning, report, runs
from woodshed.services.home import Home, opened

What = Annotated[list[str], typer.Argument(
    metavar="RUN…|TASKS…", help="Runs to read ('last' is the newest), or task folders to run agents at.")]
Agents = Annotated[list[str] | None, typer.Option(
    "--agent", "-a", help="With tasks: who acts. With runs: only these. Repeatable.")]
Models = Annotated[list[str] | None, typer.Option(
    "--model", help="With tasks: local, local:NAME, FILE.gguf, or NAME@URL; repeatable, each with each agent.")]
Attempts = Annotated[int, typer.Option("-n", "--attempts", min=1, help="With tasks: attempts of each by each agent.")]
Concurrency = Annotated[int, typer.Option("--concurrency", "-c", min=1, help="With tasks: attempts at a time.")]
Seed = Annotated[int, typer.Option(help="Of the attempts, and of the intervals over tasks.")]
Turns = Annotated[int, typer.Option(min=1, help="With tasks: turns of a model before its attempt is cut off.")]
Alpha = Annotated[float, typer.Option(min=0.0001, max=0.5, help="How often equal agents may be told apart.")]
Power = Annotated[float, typer.Option(min=0.5, max=0.99, help="How often more attempts are to find what was seen.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that stands by itself.")]


def compare(
    what: What,
    agent: Agents = None,
    model: Models = None,
    attempts: Attempts = 5,
    concurrency: Concurrency = 2,
    seed: Seed = 0,
    engine: Engine = None,
    turns: Turns = 50,
    temperature: Temperature = None,
    max_tokens: MaxTokens = 2048,
    model_key: KeyVariable = None,
    price_book: Prices = None,
    alpha: Alpha = 0.05,
    power: Power = 0.8,
    html: Html = None,
    json: Json = False,
) -> None:
    """Which agent is better, by how much, and whether that is noise: paired over the same tasks."""
    prices = planning.load_prices(price_book) if price_book else None
    folders = [name for name in what if Path(name).exists()]
    if folders and len(folders) < len(what):
        raise UsageError(f"'{next(name for name in what if name not in folders)}' is no folder, and others are",
                         field="RUN…|TASKS…", remedy="Name runs alone, or task folders alone.")
    with opened() as home:
        names, only = what, agent or []
        if folders:
            sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
            models = [agent_service.parse_model(text, sampling=sampling, key_variable=model_key)
                      for text in model or ()]
            agents = agent_service.crossed(agent or [], models, limits=AgentLimits(turns=turns))
            spec, tasks = runs.plan(folders, agents, attempts=attempts, concurrency=concurrency, seed=seed,
                                    engine=boxes.engine_of(None, engine), tell=note)
            finished = driven(lambda progress: runs.start(home, spec, tasks, progress), resume="woodshed run --resume")
            report.write_results(home, finished, report.summary(home, finished))
            names, only = [finished.id], []
        elif model:
            raise UsageError("--model is for agents that act now", field="--model", remedy="Name task folders.")
        told = _told(home, names, prices, only, alpha=alpha, power=power, seed=seed)
    if html is not None:
        _write(html, comparing.page(told))
    if json:
        emit_json(told)
    else:
        _print(told)


def _told(home: Home, names: list[str], prices: Any, only: list[str], **how: Any) -> dict[str, Any]:
    with bar() as progress:
        return comparing.told(comparing.gathered(home, names, prices, only, progress), **how)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", file=file, field="--html",
                         remedy="Name a file in a folder that is there.") from None
    note(f"page: {file}")


def _print(told: dict[str, Any]) -> None:
    k = max((max(map(int, row["at_k"]), default=1) for row in told["agents"]), default=1)
    table(
        ("agent", "#attempts", "#valid", "#passed", "#pass rate", "interval",
         *((f"#pass@{k}", f"#pass^{k}") if k > 1 else ()),
         "#seconds", "#tokens", "#tokens/success", *((f"#{told['currency']}/success",) if told["currency"] else ())),
        (_agent(row, k, bool(told["currency"])) for row in told["agents"]),
    )
    _print_scores(told)
    table(
        ("pair", "#tasks", "#wins", "#losses", "#ties", "#points", "interval", "#p", "#p, all pairs", "decided"),
        ((f"{row['a']} against {row['b']}", str(row["tasks"]), str(row["wins"]), str(row["losses"]), str(row["ties"]),
          number(row["difference"], lambda v: f"{100 * v:+.1f}"), _span(row["low"], row["high"]), f"{row['p']:.3g}",
          f"{row['p_adjusted']:.3g}", row["decided"] if row["decided"] == "noise" else row[row["decided"]])
         for row in told["pairs"]),
    )
    _print_grid(told["grid"])
    for pair in told["pairs"]:
        out.print(plain(pair["says"]))
    for text in (*told["warnings"], *told["left_out"]):
        out.print(plain(text), style="yellow")


def _agent(row: dict[str, Any], k: int, priced: bool) -> tuple[str, ...]:
    at, of = ({int(n): value for n, value in row[name].items()} for name in ("at_k", "of_k"))
    return (
        row["agent"], str(row["attempts"]), percent(row["valid_rate"]), str(row["passed"]), percent(row["pass_rate"]),
        _span(row["pass_low"], row["pass_high"]), *((percent(at.get(k)), percent(of.get(k))) if k > 1 else ()),
        number(row["values"].get("seconds")), number(row["values"].get("tokens"), lambda v: f"{v:.0f}"),
        number(row["tokens_per_success"], lambda v: f"{v:.0f}"),
        *((number(row["micros_per_success"], lambda v: f"{v / 1e6:.4f}"),) if priced else ()),
    )


def _print_scores(told: dict[str, Any]) -> None:
    from woodshed.services.comparing.page import DIMENSIONS

    table(("agent", *(f"#{name.lower()}" for name in DIMENSIONS.values())),
          ((row["agent"], *(share(row["values"].get(key)) for key in DIMENSIONS)) for row in told["agents"]))


def _print_grid(grid: dict[str, Any] | None) -> None:
    if grid is None:
        return
    table(("pass rate", *(f"#{model}" for model in grid["models"])),
          ((h, *(percent(grid["rates"][h][m]) for m in grid["models"])) for h in grid["harnesses"]))
    table(("factor", "against", "#tasks", "#points", "interval", "#p, all"),
          ((f"{row['factor']} {row['a']}", row["b"], str(row["tasks"]), f"{100 * row['difference']:+.1f}",
            _span(row["low"], row["high"]), f"{row['p_adjusted']:.3g}") for row in grid["effects"]))


def _span(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"
