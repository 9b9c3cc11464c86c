"""``woodshed regrade``: other reward rules over a run's recorded events, without any sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from woodshed.cli.output import Json, emit_json, number, out, table
from woodshed.cli.progress import counter
from woodshed.services import naming, regrading, rulesets
from woodshed.services.home import opened


def regrade(
    run: Annotated[str, typer.Argument(help="A run's id, or 'last'.")],
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file of reward rules. Without it: the run's regrades.")
    ] = None,
    json: Json = False,
) -> None:
    """Grade a run once more by other reward rules, from what was recorded; its own verdicts stay."""
    with opened() as home:
        chosen = naming.run(home, run)
        if rules is None:
            _list(regrading.listing(home, chosen), chosen.id, json)
            return
        with counter() as progress:
            made = regrading.regrade(home, chosen, rulesets.load(rules), progress)
        told = regrading.told(home, made)
    if json:
        emit_json(told)
    else:
        _print(told)


def _list(rows: list[dict[str, Any]], run: str, json: bool) -> None:
    if json:
        emit_json({"run": run, "regrades": rows})
        return
    table(("regrade", "created", "rules"),
          ((row["regrade"], row["created_at"], ", ".join(row["rules"])) for row in rows))


def _print(told: dict[str, Any]) -> None:
    table(
        ("agent", "#attempts", "#valid", "#passed", "#total before", "#total after", "#changed", "#unknown"),
        (
            (
                row["agent"], str(row["attempts"]), str(row["valid"]), str(row["passed"]), _figure(row["before"]),
                _figure(row["after"]), str(row["changed"]), str(row["unknown"]),
            )
            for row in told["agents"]
        ),
    )  # fmt: skip
    if told["unknown"]:
        table(
            ("not recomputed", "#attempts", "why"),
            ((row["rule"], str(row["attempts"]), row["why"]) for row in told["unknown"]),
        )
    out.print(f"{told['regrade']}: {told['run']} by {', '.join(told['rules'])}; the run's own verdicts stand")


def _figure(value: float | None) -> str:
    return number(value, lambda v: f"{v:.3f}")
