"""``woodshed export``: runs' attempts in others' formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from woodshed.cli.measures import bar
from woodshed.cli.output import Json, emit_json, note, out, percent, plain, table
from woodshed.errors import UsageError
from woodshed.model.counted import counted
from woodshed.services import exporting, naming
from woodshed.services.home import opened


def export(
    run: Annotated[list[str], typer.Argument(metavar="RUN…", help="Ids of runs, or 'last'.")],
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for the files.")],
    format_: Annotated[str, typer.Option("--format", help="atif | sft | preference | grpo | calls")] = "atif",
    files: Annotated[str | None, typer.Option(help="Of a data set: jsonl (else) | parquet")] = None,
    rules: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Of sft and preference: what deserves to be learnt from (TOML).")] = None,
    without: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Tasks to leave out: an id, pattern or digest a line.")] = None,
    benchmark: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Leave out tasks that resemble an item of it (JSONL, or one a line).")] = None,
    near: Annotated[float | None, typer.Option(
        min=0.01, max=1.0, help="Share of n-grams that counts as resembling, else 0.5.")] = None,
    vocabulary: Annotated[int | None, typer.Option(
        min=1, help="Of grpo and calls: ids that the model has; others are a flaw.")] = None,
    json: Json = False,
) -> None:
    """Write finished attempts as trajectories, or as a data set to learn from, with its card."""
    given = {"--files": files, "--rules": rules, "--without": without, "--benchmark": benchmark, "--near": near,
             "--vocabulary": vocabulary}
    form = exporting.check(format_, [name for name, value in given.items() if value is not None])
    if files not in (None, "jsonl", "parquet"):
        raise UsageError(f"unknown kind '{files}'", field="--files", remedy="Known: jsonl, parquet.")
    with opened() as home:
        runs = [naming.run(home, name) for name in run]
        order = exporting.Order(
            form=form, out=out_folder, files=files or "jsonl",  # type: ignore[arg-type]  # it was looked at above
            rules=exporting.load_rules(rules), without=exporting.load_list(without) if without else (),
            benchmark=benchmark, near=exporting.NEAR if near is None else near, vocabulary=vocabulary)
        with bar() as told:
            made = exporting.export(home, runs, order, told)
    if json:
        emit_json({**({"run": runs[0].id} if form == "atif" else {}), "runs": [one.id for one in runs], "format": form,
                   "files": [str(file) for file in made.files], "card": made.card})
    else:
        _show(made, out_folder)


def _show(made: exporting.Exported, folder: Path) -> None:
    card = made.card
    attempts = card["attempts"]
    rows = counted(card["rows"], "trajectory", "trajectories") if card["format"] == "atif" else \
        counted(card["rows"], "row")
    out.print(f"{rows} in {plain(str(folder))}, of {counted(attempts['finished'], 'attempt')} "
              f"({percent(card['valid_rate'])} valid)")
    if (why := card.get("empty")) is not None:
        note("no rows: nothing there is to learn from by these rules (docs/exports.md has them, --rules changes them)")
        table(("why there is no row", "#times"), [(words, str(count)) for words, count in why.items()])
        return
    left = [*card["dropped"].items(), *((f"task {name}: {why}", 1) for name, why in card["dropped_tasks"].items()),
            *((f"untrainable: {why}", count) for why, count in card.get("tokens", {}).get("untrainable", {}).items()),
            *((f"masked: {kind}", count) for kind, count in card["secrets_masked"].items())]
    if left:
        table(("left out, or changed", "#times"), [(why, str(count)) for why, count in left])
    drift = card.get("tokens", {}).get("drift", {})
    if drift:
        table(("prompts that went on", "#times"), [(kind, str(count)) for kind, count in drift.items()])
    for words in card["warnings"]:
        note(words)
