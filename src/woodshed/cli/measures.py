"""``woodshed measures``, ``rate`` and ``report``: how attempts went, and what people thought of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from woodshed.cli.options import Prices
from woodshed.cli.output import Json, emit_json, err, note, number, out, plain, table
from woodshed.model import Attempt, Run
from woodshed.model.counted import counted
from woodshed.model.prices import PriceBook
from woodshed.services import naming, planning, process
from woodshed.services import report as report_service
from woodshed.services.home import Home, opened

_HEADS = {
    "command_reliability": "commands", "user_satisfaction": "satisfaction", "controllability": "control",
    "confirmed_success": "confirmed", "focus": "focus", "craft": "craft", "safety": "safety",
}


def measures(
    name: Annotated[str, typer.Argument(metavar="RUN|ATTEMPT", help="A run's id, 'last', or an attempt's id.")],
    price_book: Prices = None,
    json: Json = False,
) -> None:
    """How attempts went, from their events: scores by agent and why, or every measure of one attempt."""
    prices = planning.load_prices(price_book) if price_book else None
    with opened() as home:
        meant = naming.either(home, name)
        if isinstance(meant, Attempt):
            told = process.of_attempt(home, meant, prices)
            shown = _print_attempt
        else:
            told = measured(home, meant, prices)
            shown = print_agents
    if json:
        emit_json(told)
    else:
        shown(told)


def rate(
    attempt: Annotated[str, typer.Argument(help="An attempt's id, or 'last'.")],
    stars: Annotated[int, typer.Argument(min=1, max=5, help="From 1, useless, to 5, as wished.")],
    note: Annotated[str, typer.Option(help="Why.")] = "",
    by: Annotated[str, typer.Option(help="Who says so.")] = "",
    json: Json = False,
) -> None:
    """Say what you think of a finished attempt; 'woodshed measures' counts it."""
    with opened() as home:
        rating = process.rate(home, attempt, stars, note, by)
    if json:
        emit_json(rating.to_json())
    else:
        out.print(f"{rating.attempt}: {rating.stars} of 5")


def report(
    run: Annotated[str, typer.Argument(help="A run's id, or 'last'.")],
    price_book: Prices = None,
    json: Json = False,
) -> None:
    """A run in full: its closing table, how its attempts went, and the steps that brought scores down."""
    from woodshed.cli.run import print_summary

    prices = planning.load_prices(price_book) if price_book else None
    with opened() as home:
        found = naming.run(home, run)
        summary = report_service.summary(home, found, prices=prices)
        told = measured(home, found, prices)
    if json:
        emit_json({**summary, "measures": told})
        return
    print_summary(summary, None)
    print_agents(told)


def measured(home: Home, run: Run, prices: PriceBook | None) -> dict[str, Any]:
    """The measures of a run, with a bar on a terminal."""
    with bar() as progress:
        return process.told(process.measured(home, run, prices, progress), run)


def print_agents(told: dict[str, Any]) -> None:
    """Scores and claims by agent, and what brought each down."""
    agents = told["agents"]
    table(
        ("agent", "#attempts", "#passed", *(f"#{head}" for head in _HEADS.values())),
        ((row["agent"], str(row["attempts"]), str(row["passed"]), *(share(row["scores"][name]) for name in _HEADS))
         for row in agents),
    )
    table(
        ("agent", "#claimed, true", "#claimed, false", "#unclaimed, true", "#unclaimed, false", "#calls",
         "#tokens/success", "#cost/success"),
        ((row["agent"], *(str(row["claims"].get(name, 0)) for name in (
            "claimed_true", "claimed_false", "unclaimed_true", "unclaimed_false")), number(row["measures"]["commands"]),
          number(row["tokens_per_success"], lambda v: f"{v:.0f}"),
          number(row["micros_per_success"], lambda v: f"{v / 1e6:.4f}")) for row in agents),
    )
    for row in agents:
        _print_why(row["agent"], row["why"])
    if told["left_out"]:
        left = counted(len(told["left_out"]), "invalid attempt")
        note(f"not measured: {left}; woodshed show {told['run']} lists them")


def _print_why(agent: str, why: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    for name, cited in why.items():
        out.print(f"[bold]{plain(agent)}[/] lost {_HEADS[name]}:")
        for one in cited:
            out.print(f"  {plain(one['attempt'])}{_where(one)}  {plain(one['measure'])}: {plain(one['why'])}")


def _print_attempt(told: dict[str, Any]) -> None:
    out.print(f"[bold]{plain(told['attempt'])}[/]  {plain(told['task'])}  {plain(told['agent'])}  "
              f"{'passed' if told['passed'] else 'failed'}, {str(told['claim']).replace('_', ', ')}")
    table(
        ("dimension", "measure", "#value", "why"),
        ((row["dimension"], row["name"], _value(row), row["why"]) for row in told["measures"]),
    )
    table(("dimension", "#score"), ((name, share(score)) for name, score in told["scores"].items()))
    for row in told["measures"]:
        for one in row["cited"]:
            out.print(f"{plain(row['name'])}{_where(one)}: {plain(one['why'])}")


def _where(cited: Mapping[str, Any]) -> str:
    step = f" step {cited['step']}" if cited["step"] is not None else ""
    return step + (f" (event {cited['seq']})" if cited["seq"] is not None else "")


def share(value: float | None) -> str:
    """A share for people, in hundredths."""
    return number(value, lambda v: f"{v:.2f}")


def _value(row: Mapping[str, Any]) -> str:
    if row["unit"] == "share":
        return share(row["value"])
    return number(row["value"], lambda v: f"{v:g} {row['unit']}")


@contextmanager
def bar() -> Iterator[process.Progress]:
    """A bar on a terminal; elsewhere nothing: an attempt takes milliseconds."""
    if not err.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn
    from rich.progress import Progress as Bar

    with Bar(BarColumn(bar_width=24), MofNCompleteColumn(), console=err) as shown:
        task = shown.add_task("", total=None)
        yield lambda done, total: shown.update(task, total=total, completed=done)
